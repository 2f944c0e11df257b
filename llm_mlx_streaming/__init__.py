"""The llm plugin: hook implementations. Nothing heavy is imported before a model is used."""

import llm


@llm.hookimpl
def register_models(register):
    from . import registry
    from .models import AsyncStreamingModel, StreamingModel

    known = registry.read()
    if known.problem:
        registry.tell(known.problem)
    register(StreamingModel(registry.DEFAULT_MODEL), AsyncStreamingModel(registry.DEFAULT_MODEL))
    register(StreamingModel(registry.DEMO_MODEL), AsyncStreamingModel(registry.DEMO_MODEL))
    for checkpoint in known.checkpoints:
        name = checkpoint.name
        register(StreamingModel(name), AsyncStreamingModel(name), aliases=checkpoint.aliases)


@llm.hookimpl
def register_commands(cli):
    from .commands import group

    cli.add_command(group)
