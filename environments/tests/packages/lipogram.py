"""The second environment of staros-stardata's `constraint_gym`, under the name that is looked for."""

from stardata.envs.constraint_gym import load_lipogram_env as load_environment  # noqa: F401
