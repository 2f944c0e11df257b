"""The llm plugin: hook implementations. Nothing heavy is imported before a model is used."""

import llm


@llm.hookimpl
def register_commands(cli):
    from .commands import group

    cli.add_command(group)
