"""From rows to findings: detect anomalies in tables and streams, explain them, report them."""
