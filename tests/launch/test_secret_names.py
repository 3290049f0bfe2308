"""Which variables --env refuses as secrets, and which harmless ones it takes."""

import pytest
from launch_jobs import job

from bert_jax.data_pipeline.errors import UserError

SECRETS = [
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "GITHUB_TOKEN", "GH_TOKEN",
    "GITLAB_TOKEN", "NPM_TOKEN", "SLACK_BOT_TOKEN", "AWS_SESSION_TOKEN", "ACCESS_TOKEN",
    "AUTH_TOKEN", "TOKEN", "hf_token", "HfToken", "API_TOKENS", "WANDB_API_KEY",
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "COMET_API_KEY", "APIKEY", "apiKey", "API_KEY_1",
    "KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AZURE_STORAGE_KEY",
    "STORAGE_ACCOUNT_KEY", "PRIVATE_KEY", "SSH_KEY", "SSHKEY", "SIGNING_KEY", "ENCRYPTION_KEY",
    "DJANGO_SECRET_KEY", "MY_KEY", "KEYS", "PASSWORD", "DB_PASSWORD", "PGPASSWORD",
    "MYSQL_PWD", "PASSWD", "SSHPASS", "DB_PASS", "PASSPHRASE", "GPG_PASSPHRASE",
    "CLIENT_SECRET", "SECRET", "WEBHOOK_SECRET", "JWT", "JWT_SECRET", "SESSION_COOKIE",
    "COOKIE", "BEARER", "GITHUB_PAT", "PAT", "GOOGLE_APPLICATION_CREDENTIALS", "CREDENTIALS",
    "AWS_CREDS", "DOCKER_AUTH_CONFIG", "NPM_AUTH", "HTTP_AUTH", "AUTHORIZATION",
    "OAUTH_CLIENT", "AZURE_STORAGE_CONNECTION_STRING", "SENTRY_DSN", "SLACK_WEBHOOK_URL",
]  # fmt: skip
HARMLESS = [
    "TOKENIZERS_PARALLELISM", "TOKENIZER", "TOKENIZER_PATH", "MAX_TOKENS", "NUM_TOKENS",
    "TOKENS_PER_BATCH", "KEYBOARD", "MONKEY", "MONKEYPATCH", "TURKEY", "KEYMAP",
    "HOKKEY_STICK", "PWD", "OLDPWD", "PATH", "LD_LIBRARY_PATH", "PYTHONPATH_X", "AUTHOR",
    "GIT_AUTHOR_NAME", "AUTHORITY", "COMPASS", "BYPASS_CACHE", "NUM_PASSES", "PATTERN",
    "PATIENCE", "COOKIECUTTER_CONFIG", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS",
    "JAX_ENABLE_X64", "TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "HF_HOME", "HF_DATASETS_OFFLINE", "TRANSFORMERS_CACHE",
    "WANDB_PROJECT", "WANDB_MODE", "LANG", "LC_ALL", "TZ", "HOME", "USER", "SHELL", "EDITOR",
    "TMPDIR", "BERT_JAX_CACHE", "NUMBA_CACHE_DIR", "GRPC_VERBOSITY", "SEED", "LOG_LEVEL",
    "DEBUG", "RUN_ID", "REGION",
]  # fmt: skip
VALUES = [
    "hf_0123456789abcdefghij", "ghp_0123456789", "gho_0123456789", "github_pat_11ABC", "sk-abc123",
    "sk-proj-abc", "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "glpat-abc", "xoxb-1-2-a",
    "AIzaSyA", "ya29.a0A", "eyJhbGciOi.eyJzdWIi.abc", "Bearer abc", " hf_0123456789",
    "-----BEGIN RSA PRIVATE KEY-----\nabc", "postgres://me:hunter2@host/db", "https://:x@host",
]  # fmt: skip
PLAIN = [
    "1", "", "false", "ASIA", "asia-east1", "gs://bucket/key",
    "https://host:8080/path", "http://host/a@b", "user@host",
    "--xla_tpu_enable_x=true", "hf", "skip", "task-1", "a:b@c", "git+ssh://git@host/repo", "half_",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_of_secrets_is_refused(name):
    with pytest.raises(UserError, match=f"--env={name}=…: looks like a secret") as error:
        job(env=((name, "hunter2"),))
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_name_passes(name):
    assert job(env=((name, "1"),)).env == ((name, "1"),)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_is_a_secret_is_refused_under_any_name(value):
    with pytest.raises(UserError, match="--env=X=…: its value looks like a secret") as error:
        job(env=(("X", value),))
    assert value not in str(error.value)


@pytest.mark.parametrize("value", PLAIN)
def test_a_harmless_value_passes(value):
    assert job(env=(("X", value),)).env == (("X", value),)
