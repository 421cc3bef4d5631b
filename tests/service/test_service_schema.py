"""The OpenAPI schema: requests generated from it never cause a server error."""

import pytest
import schemathesis
from effort import examples
from hypothesis import HealthCheck, given, settings
from services import PATIENCE, WEB, Service, odd, rows

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    config = WEB + "\n[server]\nrequests_per_second = 100000\n"
    started = Service(programs, tmp_path_factory.mktemp("schema"), config).start()
    started.post("web", [*rows(200), odd(200), *rows(20, 201)])
    yield started
    started.close()


def test_requests_generated_from_the_schema_cause_no_server_errors(service):
    schema = schemathesis.openapi.from_url(f"{service.url}/api/v1/openapi.json").exclude(
        path_regex="/(feed|write|metrics)$"
    )
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:

        @settings(max_examples=examples(25), suppress_health_check=list(HealthCheck), deadline=None, database=None)
        @given(case=operation.as_strategy())
        def ask(case):
            for name, known in (("stream", "web"), ("id", "0123456789abcdef")):
                if name in (case.path_parameters or {}) and case.path_parameters[name] != known:
                    case.path_parameters[name] = known  # most generated names do not exist
            answer = case.call(base_url=service.url, timeout=PATIENCE)
            assert answer.status_code < 500, (case.method, case.path, case.query, case.body, answer.text)

        ask()
    assert service.client.get("/ready").status_code == 200


def test_every_route_has_a_description(service):
    described = service.get("/openapi.json")["paths"]
    for path in ("status", "streams/{stream}/records", "streams/{stream}/series", "events", "overview", "feed"):
        assert f"/api/v1/{path}" in described
    operations = [operation for one in described.values() for operation in one.values()]
    assert all(operation.get("description") for operation in operations)
