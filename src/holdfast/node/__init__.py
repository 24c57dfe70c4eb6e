"""The node: what `holdfast up` runs. For now the embedded server and a health address."""
