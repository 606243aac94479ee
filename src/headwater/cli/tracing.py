"""Spans of a command to a collector, as the OTEL_* variables say; the SDK reads most of them itself.

Needs the extra `traces`. An application that has set up its own tracing keeps it.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Final

from headwater.cli.config import environment

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_log = logging.getLogger(__name__)

# A collector that does not answer must not hold up whoever waits for the process to end.
_FLUSH_SECONDS: Final = 5.0
_SERVICE: Final = "headwater"


@contextmanager
def tracing(service: str = _SERVICE) -> Iterator[None]:
    """Within it spans are recorded and exported, if variables ask for it; at the end what is left is sent.

    They ask with OTEL_TRACES_EXPORTER (otlp, console or none) or OTEL_EXPORTER_OTLP_ENDPOINT. The service has this name,
    unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES gives another.
    """
    wanted = exporters(environment())
    provider = _provider(wanted, service) if wanted else None
    try:
        yield
    finally:
        if provider is not None:
            _flush(provider)


def exporters(variables: Mapping[str, str]) -> list[str]:
    """Where the variables have spans sent: some of `otlp` and `console`; what is not known here is left out, and said."""
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = [one.strip() for one in variables.get("OTEL_TRACES_EXPORTER", "").split(",") if one.strip()]
    if not named and (variables.get("OTEL_EXPORTER_OTLP_ENDPOINT") or variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        named = ["otlp"]
    for one in named:
        if one not in ("otlp", "console", "none"):
            _log.warning("OTEL_TRACES_EXPORTER has %r, which is not known here; use otlp, console or none", one)
    protocol = variables.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or variables.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if "otlp" in named and protocol not in (None, "", "http/protobuf"):
        _log.warning("spans are sent by http/protobuf, and not by %s; name an endpoint that takes them so", protocol)
    return [one for one in named if one in ("otlp", "console")]


def _provider(wanted: list[str], service: str) -> "TracerProvider | None":
    """What records spans and exports them; None if somebody else does, or nothing can."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        made = [_exporter(one) for one in wanted]
    except ImportError as exc:
        _log.warning(
            "spans are asked for by OTEL_* variables, and %s is not installed; run `pip install 'headwater[traces]'`",
            exc.name,
        )
        return None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        _log.debug("the application has set up its own tracing")
        return None
    # What is given here would win over the variables.
    named = {} if _is_named(environment()) else {"service.name": service}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    for exporter in made:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def _exporter(name: str) -> "SpanExporter":
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _is_named(variables: Mapping[str, str]) -> bool:
    return bool(variables.get("OTEL_SERVICE_NAME")) or "service.name=" in variables.get("OTEL_RESOURCE_ATTRIBUTES", "")


def _flush(provider: "TracerProvider") -> None:
    thread = Thread(target=provider.shutdown, name="headwater spans", daemon=True)
    thread.start()
    thread.join(_FLUSH_SECONDS)
    if thread.is_alive():
        _log.warning("the collector did not take the last spans within %g s, and they are lost", _FLUSH_SECONDS)
