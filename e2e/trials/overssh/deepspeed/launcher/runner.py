"""Constants of DeepSpeed's launcher."""

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
