"""The service: scores streams in one process, with history, alerts, an API and a page. Needs the extra [service]."""
