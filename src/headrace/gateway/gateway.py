"""The gateway: all served models by name, their start, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

import msgspec
import zmq

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.config import ModelSpec, ServeConfig
from headrace.gateway.errors import UnavailableError
from headrace.gateway.lease import open_lease
from headrace.gateway.memory import MemoryShare, share_memory
from headrace.gateway.service import ModelService
from headrace.gateway.supervisor import State, Supervisor
from headrace.gateway.text import ModelText, TextLoader, TextPool
from headrace.observe.metrics import Metrics, ModelMetrics
from headrace.worker.channel import make_runtime_dir, remove_runtime_dir
from headrace.worker.config import WorkerConfig

logger = logging.getLogger("headrace.gateway")

_WARM_UP = [{"role": "user", "content": "hello"}]
_SETTLED = {State.READY, State.FAILED}


class Gateway:
    """Owns services, supervisors, sockets and threads. Made and used on one event loop."""

    def __init__(
        self,
        config: ServeConfig,
        load_text: TextLoader,
        *,
        builder: str | None = None,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.pool = TextPool()
        self.is_draining = False
        self._load_text = load_text
        self._builder = builder
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._runtime_dir = make_runtime_dir()
        self._lease_fd = open_lease(config.threads)
        self._tasks: list[asyncio.Task[None]] = []
        shares = share_memory(config)
        self.services = [
            self._make_service(spec, names, share)
            for spec, names, share in zip(config.models, config.names(), shares, strict=True)
        ]
        self._by_name = {name: service for service in self.services for name in service.names}

    def _make_service(
        self, spec: ModelSpec, names: tuple[str, ...], share: MemoryShare
    ) -> ModelService:
        service = ModelService(spec, self.config, ModelMetrics(self.metrics, names[0]))
        service.names = names
        service.supervisor = Supervisor(
            self._config_maker(spec, share),
            self.config.restart,
            self._runtime_dir,
            self._context,
            service,
        )
        return service

    def _config_maker(self, spec: ModelSpec, share: MemoryShare) -> Callable[[str], WorkerConfig]:
        config = self.config

        def make(endpoint: str) -> WorkerConfig:
            made = WorkerConfig(
                model_name=spec.name,
                model_path=str(spec.path),
                endpoint=endpoint,
                parent_pid=os.getpid(),
                max_model_len=config.max_model_len,
                memory_limit=share.limit,
                kv_cache_bytes=share.kv_cache,
                max_num_seqs=config.max_num_seqs,
                max_waiting=config.max_waiting,
                max_waiting_tokens=config.max_waiting_tokens,
                threads=config.threads,
                lease_fd=self._lease_fd,
                packing=config.packing,
                kv_dtype=config.kv_dtype,
                activations=config.activations,
                scheduling=config.scheduling,
                prefix_cache=config.prefix_cache,
                log_level=config.log_level,
                log_format=config.log_format,
            )
            if self._builder is not None:
                made = msgspec.structs.replace(made, builder=self._builder)
            return made

        return make

    # ---- life ----

    def start(self) -> None:
        """Begin to load every model; returns at once."""
        for service in self.services:
            assert service.supervisor is not None
            self._tasks.append(asyncio.create_task(service.supervisor.run()))
            self._tasks.append(asyncio.create_task(self._load(service)))

    async def _load(self, service: ModelService) -> None:
        loop = asyncio.get_running_loop()
        try:
            text: ModelText = await loop.run_in_executor(None, self._load_text, service.spec)
        except HeadraceError as error:
            service.fail_text(str(error))
        else:
            service.set_text(text)
            # The first rendering imports and compiles: not at the cost of the first request.
            with contextlib.suppress(Exception):
                await loop.run_in_executor(None, text.template.render, _WARM_UP)

    async def stop(self, timeout_s: float) -> None:
        """Stop all workers: those that run something get up to `timeout_s` to finish it."""
        self.is_draining = True
        supervisors = [s.supervisor for s in self.services if s.supervisor is not None]
        await asyncio.gather(*(supervisor.stop(timeout_s) for supervisor in supervisors))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.close()

    def kill(self) -> None:
        """Kill and reap every worker now."""
        for service in self.services:
            if service.supervisor is not None:
                service.supervisor.kill_now()

    def close(self) -> None:
        """Free sockets, threads and the runtime folder. Workers must be gone."""
        self.pool.close()
        self._context.destroy(linger=0)
        remove_runtime_dir(self._runtime_dir)
        if self._lease_fd is not None:
            os.close(self._lease_fd)
            self._lease_fd = None

    # ---- use ----

    @property
    def is_ready(self) -> bool:
        """True while a model is servable and none of the others is on its way to be."""
        states = {service.state for service in self.services}
        return not self.is_draining and State.READY in states and states <= _SETTLED

    def find(self, name: str | None) -> ModelService:
        """The service of a model id, the first one for None.

        Raises RequestError 404 for an unknown id.
        """
        if name is None:
            return self.services[0]
        service = self._by_name.get(name)
        if service is None:
            shown = name if len(name) <= 100 else name[:100] + "..."
            known = ", ".join(self._by_name)
            raise RequestError(
                f"The model {shown!r} does not exist; this server has: {known}.",
                param="model",
                code="model_not_found",
                status=404,
            )
        return service

    def check_accepting(self) -> None:
        """Raise while the server is shutting down."""
        if self.is_draining:
            raise UnavailableError(
                "The server is shutting down.", code="draining", retry_after_s=5.0
            )
