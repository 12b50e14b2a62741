"""Metrics of runs: what is counted, that it is exact and of one moment, and that no series is made of what is a user's."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cano import (
    AnyOf,
    CancellationToken,
    CompensatableTask,
    ConfigurationError,
    DoNotRetry,
    FixedRetry,
    MemoryCheckpointStore,
    Resource,
    SkipAndContinue,
    Split,
    Task,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.observe.prometheus import PrometheusObserver
from cano.observe.tally import OTHER, SERIES, VALUES
from cano.observer import StateEntered, TaskSucceeded
from tests.streams import Probe, failing, machine, numbers, run, then_silence

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

Scrape = dict[str, float]


class Scraped:
    """An observer with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry)

    def scrape(self) -> Scrape:
        """Every sample by its name and labels, as the text format has them."""
        found: Scrape = {}
        for family in text_string_to_metric_families(generate_latest(self.registry).decode()):
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
        return found

    def having(self, start: str) -> Scrape:
        return {name: value for name, value in self.scrape().items() if name.startswith(start) and "_bucket" not in name}


async def test_a_stream_is_counted() -> None:
    metrics = Scraped()
    options: Any = {"process": failing(2), "on_item_error": SkipAndContinue()}
    await run(Probe(numbers(1, 6), **options), MemoryCheckpointStore(), observers=[metrics.observer], name="flow")
    scrape = metrics.scrape()
    expected = {
        "cano_workflow_runs_total{outcome=completed,workflow=flow}": 1,
        "cano_workflow_duration_seconds_count{outcome=completed,workflow=flow}": 1,
        "cano_workflow_active{workflow=flow}": 0,
        "cano_task_duration_seconds_count{kind=stream,state=work,workflow=flow}": 1,
        "cano_observed_task_runs_total{outcome=completed,task=Probe,workflow=flow}": 1,
        "cano_stream_runs_total{outcome=completed,workflow=flow}": 1,
        "cano_stream_windows_committed_total{state=work,workflow=flow}": 3,
        "cano_stream_outputs_committed_total{state=work,workflow=flow}": 5,
        "cano_stream_items_dropped_total{dead_lettered=false,state=work,workflow=flow}": 1,
        "cano_state_enters_total{state=work,workflow=flow}": 1,
        "cano_state_enters_total{state=done,workflow=flow}": 1,
        "cano_checkpoints_observed_total{kind=STATE_ENTRY,workflow=flow}": 2,
        "cano_checkpoints_observed_total{kind=STEP_CURSOR,workflow=flow}": 3,
    }
    assert {name: scrape.get(name) for name in expected} == expected


async def test_every_outcome_of_a_run_is_counted_and_none_stays_active() -> None:
    metrics = Scraped()
    observers, token = [metrics.observer], CancellationToken()

    def crash(item: int) -> None:
        raise KeyboardInterrupt

    await run(Probe(numbers(1, 2)), observers=observers)
    with pytest.raises(TaskExecutionError):
        await run(Probe(numbers(1, 2), process=failing(1)), observers=observers)
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 9), process=lambda item: token.cancel()), token=token, observers=observers)
    with pytest.raises(WorkflowTimeoutError):
        await run(Probe(then_silence(1)), observers=observers, total_timeout=0.01)
    with pytest.raises(KeyboardInterrupt):
        await run(Probe(numbers(1, 2), process=crash), observers=observers)
    outcomes = ("completed", "failed", "cancelled", "timeout", "crashed")
    assert metrics.having("cano_workflow_runs") == {
        f"cano_workflow_runs_total{{outcome={outcome},workflow=workflow}}": 1 for outcome in outcomes
    }
    assert metrics.having("cano_workflow_active") == {"cano_workflow_active{workflow=workflow}": 0}
    assert metrics.having("cano_stream_runs") == {
        "cano_stream_runs_total{outcome=completed,workflow=workflow}": 1,
        "cano_stream_runs_total{outcome=failed,workflow=workflow}": 2,
        "cano_stream_runs_total{outcome=cancelled,workflow=workflow}": 1,
    }
    assert metrics.having("cano_observed_workflow_timeouts") == {"cano_observed_workflow_timeouts_total{workflow=workflow}": 1}
    assert metrics.having("cano_observed_cancellations") == {"cano_observed_cancellations_total{workflow=workflow}": 1}


async def test_a_run_that_goes_on_is_active() -> None:
    metrics, reached = Scraped(), asyncio.Event()
    running = asyncio.create_task(run(Probe(then_silence(2, reached)), observers=[metrics.observer]))
    await reached.wait()
    assert metrics.having("cano_workflow_active") == {"cano_workflow_active{workflow=workflow}": 1}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert metrics.having("cano_workflow_active") == {"cano_workflow_active{workflow=workflow}": 0}


async def test_retries_branches_compensations_resumes_and_what_could_not_be_put_away_are_counted() -> None:
    class Flaky(Task[str]):
        config = TaskConfig(retry=FixedRetry(2, 0))

        async def run(self, ctx: Any) -> str:
            if ctx.attempt < 3:
                raise ValueError
            return "split"

    class Step(CompensatableTask[str, int]):
        async def run(self, ctx: Any) -> tuple[str, int]:
            return "fail", 1

        async def compensate(self, ctx: Any, output: int) -> None:
            pass

    class Sticky(MemoryCheckpointStore):
        async def clear(self, workflow_id: str) -> None:
            raise OSError

    class Bad(Resource):
        async def teardown(self) -> None:
            raise ValueError

    async def quick(ctx: Any) -> int:
        return 1

    async def slow(ctx: Any) -> int:
        await asyncio.Event().wait()
        return 2

    async def fail(ctx: Any) -> str:
        raise DoNotRetry

    metrics, store = Scraped(), Sticky()
    flow = Workflow[str](observers=[metrics.observer], checkpoint_store=store, resources={"bad": Bad()}, name="flow")
    flow.register("flaky", Flaky()).register("split", Split([fail, slow, quick], join=AnyOf(), then="step"))
    flow.register("step", Step()).register("fail", fail).add_exit_state("done")
    with pytest.raises(TaskExecutionError):
        await flow.orchestrate("flaky", workflow_id="r")
    task = Probe(numbers(1, 3), process=failing(2))
    other = machine(task, MemoryCheckpointStore(), observers=[metrics.observer], name="other")
    with pytest.raises(TaskExecutionError):
        await other.orchestrate("work", workflow_id="r")
    task.hooks["process"] = None
    await other.resume_from("r")
    scrape = metrics.scrape()
    expected = {
        "cano_task_retries_total{task=Flaky,workflow=flow}": 2,
        "cano_split_branch_results_total{result=success,workflow=flow}": 1,
        "cano_split_branch_results_total{result=failure,workflow=flow}": 1,
        "cano_split_branch_results_total{result=cancelled,workflow=flow}": 1,
        "cano_compensations_run_total{result=ok,workflow=flow}": 1,
        "cano_checkpoint_clear_failures_total{workflow=flow}": 1,
        "cano_teardown_failures_total{workflow=flow}": 1,
        "cano_resumes_total{workflow=other}": 1,
    }
    assert {name: scrape.get(name) for name in expected} == expected


async def test_ten_thousand_runs_with_ids_and_errors_of_their_own_make_no_more_series_than_ten() -> None:
    """BR-83, BR-78."""
    metrics = Scraped()

    async def work(ctx: Any) -> str:
        number = int(ctx.workflow_id.removeprefix("unique-"))
        if number % 2:
            raise DoNotRetry(f"secret-{number}")
        ctx.data["secret"] = f"secret-{number}"
        return "done"

    flow = machine(work, observers=[metrics.observer])

    async def some(first: int, last: int) -> None:
        for number in range(first, last):
            try:
                await flow.orchestrate("work", workflow_id=f"unique-{number}", data={"secret": "secret"})
            except TaskExecutionError:
                assert number % 2

    asyncio.get_running_loop().set_debug(False)  # it makes each asyncio task five times as slow
    await some(0, 10)
    few = metrics.scrape()
    await some(10, 10_000)
    many = metrics.scrape()
    assert many.keys() == few.keys()
    assert many["cano_workflow_runs_total{outcome=failed,workflow=workflow}"] == 5_000
    text = generate_latest(metrics.registry).decode()
    assert "unique" not in text
    assert "secret" not in text


async def test_whatever_users_call_things_the_number_of_series_is_bounded_and_nothing_is_lost() -> None:
    metrics = Scraped()
    for number in range(3 * VALUES):
        for state in range(10):
            metrics.observer.on_state_enter(StateEntered(run=1, workflow_id="r", workflow=f"flow {number}", state=f"s{state}"))
    series = metrics.having("cano_state_enters")
    assert len(series) == SERIES + 1
    assert series[f"cano_state_enters_total{{state={OTHER},workflow={OTHER}}}"] > 0
    assert sum(series.values()) == 30 * VALUES
    for number in range(3 * VALUES):
        event = TaskSucceeded(run=1, workflow_id="r", workflow="w", state="s", task=f"task {number}", kind="single", seconds=0.1)
        metrics.observer.on_task_success(event)
    tasks = metrics.having("cano_observed_task_runs")
    assert len(tasks) == VALUES + 1
    assert tasks[f"cano_observed_task_runs_total{{outcome=completed,task={OTHER},workflow=w}}"] == 2 * VALUES


async def test_names_that_no_line_could_hold_are_escaped() -> None:
    metrics = Scraped()
    for name in ('a"b\nc\\', "\ud800", "x" * 1_000):
        metrics.observer.on_state_enter(StateEntered(run=1, workflow_id="r", workflow=name, state="s"))
    names = list(metrics.having("cano_state_enters"))
    assert len(names) == 3
    assert all(len(name) < 400 for name in names)


async def test_a_histogram_says_how_long_things_took() -> None:
    metrics = Scraped()
    for seconds in (0.0005, 0.001, 0.02, 9_000.0):
        event = TaskSucceeded(run=1, workflow_id="r", workflow="w", state="s", task="t", kind="single", seconds=seconds)
        metrics.observer.on_task_success(event)
    scrape = metrics.scrape()

    def bucket(bound: str) -> float:
        return scrape[f"cano_task_duration_seconds_bucket{{kind=single,le={bound},state=s,workflow=w}}"]

    assert [bucket(bound) for bound in ("0.001", "0.005", "0.025", "7200.0", "+Inf")] == [2, 2, 3, 3, 4]
    assert scrape["cano_task_duration_seconds_count{kind=single,state=s,workflow=w}"] == 4
    assert scrape["cano_task_duration_seconds_sum{kind=single,state=s,workflow=w}"] == pytest.approx(9_000.0215)


async def test_every_family_has_its_type_and_a_text() -> None:
    metrics = Scraped()
    await run(Probe(numbers(1, 2)), observers=[metrics.observer])
    text = generate_latest(metrics.registry).decode()
    for line in (
        "# TYPE cano_workflow_runs_total counter",
        "# TYPE cano_workflow_duration_seconds histogram",
        "# TYPE cano_workflow_active gauge",
        "# TYPE cano_circuit_rejections_total counter",
        "# HELP cano_workflow_active Executions going on.",
    ):
        assert line in text.splitlines()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == {line.split()[2] for line in text.splitlines() if line.startswith("# HELP") and len(line.split()) > 3}
    assert all(name.startswith("cano_") for name in names)


async def test_a_registry_has_one_observer_at_a_time() -> None:
    registry = CollectorRegistry()
    first = PrometheusObserver(registry)
    with pytest.raises(ConfigurationError, match="already"):
        PrometheusObserver(registry)
    first.close()
    first.close()
    second = PrometheusObserver(registry)
    await run(Probe(numbers(1, 2)), observers=[first, second])
    assert b'cano_workflow_runs_total{outcome="completed",workflow="workflow"} 1.0' in generate_latest(registry)


async def test_without_a_registry_it_is_in_the_one_of_the_library() -> None:
    observer = PrometheusObserver()
    try:
        await run(Probe(numbers(1, 2)), observers=[observer])
        assert b"cano_workflow_runs_total" in generate_latest(REGISTRY)
    finally:
        observer.close()
    assert b"cano_workflow_runs_total" not in generate_latest(REGISTRY)


async def test_only_what_counts_by_itself_can_be_watched() -> None:
    with pytest.raises(ConfigurationError, match="not a object"):
        PrometheusObserver(CollectorRegistry(), watch=[object()])


def _in_threads(work: Callable[[], Any], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


async def test_scrapes_from_other_threads_while_loops_in_other_threads_run_see_exact_and_consistent_numbers() -> None:
    metrics = Scraped()
    done, seen, wrong = threading.Event(), [], []
    loops, runs, windows = 3, 20, 25

    def work() -> None:
        async def some() -> None:
            for _ in range(runs):
                await run(Probe(numbers(1, 2 * windows)), observers=[metrics.observer])

        asyncio.run(some())

    def scrape() -> None:
        before: Scrape = {}
        while not done.is_set():
            found = metrics.scrape()
            seen.append(found)
            wrong.extend(name for name, value in before.items() if "active" not in name and found.get(name, -1) < value)
            count, total = "cano_stream_windows_committed_total{", "cano_stream_outputs_committed_total{"
            labels = "state=work,workflow=workflow}"
            if found.get(count + labels, 0) * 2 != found.get(total + labels, 0):
                wrong.append("windows and outputs are of different moments")
            histogram = "cano_workflow_duration_seconds_{}{{{}outcome=completed,workflow=workflow}}"
            if found.get(histogram.format("count", "")) != found.get(histogram.format("bucket", "le=+Inf,")):
                wrong.append("the buckets and the count are of different moments")
            before = found

    def all_of_it() -> None:
        scrapers, workers = _in_threads(scrape, 2), _in_threads(work, loops)
        for thread in workers:
            thread.join()
        done.set()
        for thread in scrapers:
            thread.join()

    await asyncio.to_thread(all_of_it)
    assert wrong == []
    assert seen
    last = metrics.scrape()
    assert last["cano_workflow_runs_total{outcome=completed,workflow=workflow}"] == loops * runs
    assert last["cano_stream_outputs_committed_total{state=work,workflow=workflow}"] == loops * runs * windows * 2
    assert last["cano_workflow_active{workflow=workflow}"] == 0


async def test_many_threads_at_one_number_lose_none_and_every_scrape_sees_a_sum_that_fits_its_count() -> None:
    metrics, done, wrong = Scraped(), threading.Event(), []
    event = TaskSucceeded(run=1, workflow_id="r", workflow="w", state="s", task="t", kind="single", seconds=0.25)
    labels = "{kind=single,state=s,workflow=w}"

    def tell() -> None:
        for _ in range(20_000):
            metrics.observer.on_task_success(event)

    def scrape() -> None:
        while not done.is_set():
            family = next(family for family in metrics.observer.collect() if family.name == "cano_task_duration_seconds")
            values = {sample.name.removeprefix("cano_task_duration_seconds_"): sample.value for sample in family.samples}
            if values.get("sum", 0) != values.get("count", 0) / 4:
                wrong.append(values)

    def all_of_it() -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            scrapers = _in_threads(scrape, 1)
            for thread in _in_threads(tell, 4):
                thread.join()
        finally:
            sys.setswitchinterval(before)
        done.set()
        for thread in scrapers:
            thread.join()

    await asyncio.to_thread(all_of_it)
    assert wrong == []
    assert metrics.scrape()[f"cano_task_duration_seconds_count{labels}"] == 80_000


async def test_what_can_go_wrong_is_counted_from_zero_when_a_workflow_is_watched_or_first_run() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    nightly = Workflow[str](name="nightly", observers=[observer])
    observer.watch(nightly)
    failed = {"workflow": "nightly", "outcome": "failed"}
    assert registry.get_sample_value("cano_workflow_runs_total", failed) == 0
    assert registry.get_sample_value("cano_compensations_run_total", {"workflow": "nightly", "result": "err"}) == 0
    seen: list[float | None] = []

    class Reads(Probe):
        async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
            labels = {"workflow": "nightly", "state": "work", "dead_lettered": "true"}
            seen.append(registry.get_sample_value("cano_stream_items_dropped_total", labels))

    await nightly.register("work", Reads(numbers(1, 2))).add_exit_state("done").orchestrate("work")
    assert seen == [0]


@pytest.mark.parametrize(("registry", "watch"), [(3, ()), (None, 3), (None, [3])])
async def test_what_is_no_registry_and_nothing_to_watch_is_refused(registry: Any, watch: Any) -> None:
    with pytest.raises(ConfigurationError):
        PrometheusObserver(registry, watch=watch)
