// A worker of the contended lock benchmark: takes and releases one lock for a while, and reports every hold.
//
//	peer <lib> <addr> <name> <seconds> <hold_ms>     lib: rueidislock | redsync
//
// It speaks the same protocol as the Python workers (see bench/fleet.py): prints "ready", waits for a line on
// standard input, runs, prints one JSON line, and keeps its connections open until standard input is closed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

// A wait that goes on for this long after the end of the run, when nobody holds the lock any more, is reported as stuck.
const grace = 3 * time.Second

// acquirer takes the lock and returns what releases it.
type acquirer func(ctx context.Context, name string) (func() error, error)

type result struct {
	Rows  [][4]int64 `json:"rows"`
	Stuck [][2]int64 `json:"stuck"`
}

func openRueidislock(addr string) (acquirer, func(), error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:    1,    // its README: for a single server
		NoLoopTracking: true, // its README: better performance on servers from 7.0.5
	})
	if err != nil {
		return nil, nil, err
	}
	acquire := func(ctx context.Context, name string) (func() error, error) {
		_, cancel, err := locker.WithContext(ctx, name)
		return func() error { cancel(); return nil }, err
	}
	return acquire, locker.Close, nil
}

func openRedsync(addr string) (acquirer, func(), error) {
	client := goredislib.NewClient(&goredislib.Options{Addr: addr})
	rs := redsync.New(goredis.NewPool(client))
	acquire := func(ctx context.Context, name string) (func() error, error) {
		// The default gives up after 32 tries; the benchmark waits as long as it takes, as the others do.
		mutex := rs.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30))
		if err := mutex.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error {
			ok, err := mutex.Unlock()
			if err == nil && !ok {
				err = fmt.Errorf("redsync: lock was no longer held")
			}
			return err
		}, nil
	}
	return acquire, func() { client.Close() }, nil
}

// The clock that Python's time.monotonic_ns reads, so that holds of different processes can be compared.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// Sleeps for all but the last millisecond and spins the rest, so that a hold is as long in every language.
func hold(since int64, ns int64) {
	if ns <= 0 {
		return
	}
	if ns > int64(time.Millisecond) {
		time.Sleep(time.Duration(ns) - time.Millisecond)
	}
	for now()-since < ns {
	}
}

func run(acquire acquirer, name string, seconds float64, holdNs int64) (result, error) {
	out := result{make([][4]int64, 0, 1<<16), [][2]int64{}}
	// Cancelled by a timer and not by a deadline: rueidislock shortens its leases to a context's deadline.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(time.Duration(seconds*1e9)+grace, cancel).Stop()
	for deadline := now() + int64(seconds*1e9); now() < deadline; {
		start := now()
		release, err := acquire(ctx, name)
		if err != nil && ctx.Err() != nil {
			out.Stuck = append(out.Stuck, [2]int64{start, now()})
			return out, nil
		}
		if err != nil {
			return out, err
		}
		granted := now()
		hold(granted, holdNs)
		ending := now()
		if err := release(); err != nil {
			return out, err
		}
		out.Rows = append(out.Rows, [4]int64{start, granted, ending, now()})
	}
	return out, nil
}

func work(lib, addr, name string, seconds float64, holdNs int64) error {
	openers := map[string]func(string) (acquirer, func(), error){
		"rueidislock": openRueidislock,
		"redsync":     openRedsync,
	}
	open, known := openers[lib]
	if !known {
		return fmt.Errorf("unknown library %q", lib)
	}
	acquire, closeAll, err := open(addr)
	if err != nil {
		return err
	}
	defer closeAll()
	if _, err := run(acquire, fmt.Sprintf("warm-up:%d", os.Getpid()), 0.2, 0); err != nil {
		return err
	}

	stdin := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := stdin.ReadString('\n'); err != nil {
		return err
	}
	out, err := run(acquire, name, seconds, holdNs)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return err
	}
	_, _ = stdin.ReadString('\n')
	return nil
}

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: peer <lib> <addr> <name> <seconds> <hold_ms>")
		os.Exit(2)
	}
	seconds, err1 := strconv.ParseFloat(os.Args[4], 64)
	holdMs, err2 := strconv.ParseFloat(os.Args[5], 64)
	if err1 != nil || err2 != nil {
		fmt.Fprintln(os.Stderr, "seconds and hold_ms are numbers")
		os.Exit(2)
	}
	if err := work(os.Args[1], os.Args[2], os.Args[3], seconds, int64(holdMs*1e6)); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}
