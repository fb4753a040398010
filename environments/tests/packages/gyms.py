"""verifiers' own door to reasoning-gym, as its environment package has it."""

import verifiers as vf


def load_environment(gym="chain_sum", num_train_examples=4, num_eval_examples=2, seed=3):
    return vf.ReasoningGymEnv(gym, num_train_examples=num_train_examples, num_eval_examples=num_eval_examples, seed=seed)
