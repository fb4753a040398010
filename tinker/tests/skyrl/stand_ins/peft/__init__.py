"""Stands in for peft, of which SkyRL's JAX backend uses one thing: a config that can be written to a folder."""

import json
import pathlib

__version__ = "0.0.0"


class LoraConfig:
    """Settings of an adapter, kept as they come."""

    def __init__(self, **settings):
        self.settings = {"peft_type": "LORA", **settings}

    def save_pretrained(self, folder):
        """Writes them where loaders of adapters look."""
        text = json.dumps(self.settings, indent=1, default=sorted)
        (pathlib.Path(folder) / "adapter_config.json").write_text(text)
