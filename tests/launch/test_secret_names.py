"""Which variables --env refuses as secrets, and which harmless ones it takes."""

import pytest
from launch_jobs import job

from bert_jax.errors import UserError

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
    "SMTP_PW", "DBPW", "ROOT_PW", "PW", "DB_PW_1", "USERPASS", "MYSQLPASS", "userPass",
    "SMTP_USERPASS", "AZURE_SAS", "SAS_URL", "BLOB_SAS_URI", "SHARED_ACCESS_SIGNATURE",
    "SharedAccessSignature", "CONN_STR", "CONNSTR", "DB_CONN_STRING", "CONNECTIONSTRING",
    "STRIPE_SK", "SK", "STORAGEKEY", "SHAREDKEY", "SHAREDACCESSKEY", "HMACKEY", "DEPLOYKEY",
    "AUTHKEY", "DECRYPTKEY", "sessionKey", "SA_JSON", "GCP_SA_JSON", "SERVICE_ACCOUNT_JSON",
    "KEYTAB", "KRB5_KEYTAB", "KEYSTORE", "KEYFILE", "MNEMONIC",
    "PGPASSFILE", "HASH_SALT", "CACHE_API_KEY", "DATA_ENCRYPTION_KEY", "USER_SESSION_TOKEN",
    "TOKEN2", "DB_PASSWORD_FILE", "MYSQLPWD", "LABEL_ACCESS_TOKEN",
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
    "DEBUG", "RUN_ID", "REGION", "KEYBOARD_LAYOUT", "MONKEYS", "DONKEY", "HOCKEY", "WHISKEY",
    "JOCKEY", "LACKEY", "KEYWORDS", "KEYNOTE", "KEYFRAMES", "PASSES", "PASSENGERS",
    "BYPASS", "TRESPASS", "PASSTHROUGH", "SURPASS", "PWD_CHECK", "UPWARD", "DISK", "TASK", "MASK",
    "RISK", "SKIP", "ASSASSIN", "TEXAS", "VISAS", "SASS_VERSION", "SA_MODEL", "JSON", "JSON_PATH",
    "CONN_TIMEOUT", "CONNECTIONS", "STRING", "SHARED_MEMORY", "ACCESS_MODE", "SIGNATURE_SIZE",
    "MASK_TOKEN", "PAD_TOKEN", "CLS_TOKEN", "SEP_TOKEN", "EOS_TOKEN", "SPECIAL_TOKENS",
    "SSH_AUTH_SOCK", "MASK_TOKEN_PROB", "TOKEN_DROPOUT", "TOKEN_LIMIT", "TEXT_KEY", "LABEL_KEY",
    "DATA_KEY", "SORT_KEY",
    "CACHE_KEY", "PRNG_KEY", "PUBLIC_KEY", "PASS_COUNT", "TOKEN_TYPE", "KEY_SIZE", "LOWPASS_RATE",
    "OAUTHLIB_INSECURE_TRANSPORT", "labelKey", "BOS_TOKEN_ID", "JOIN_KEYS", "PASSWORD_LENGTH",
    "STORAGE", "PWM", "SPIN_COUNT", "PIN_MEMORY", "DATASEED", "BASIC",
]  # fmt: skip
VALUES = [
    "hf_0123456789abcdefghij", "ghp_0123456789", "gho_0123456789", "github_pat_11ABC", "sk-abc123",
    "sk-proj-abc", "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "glpat-abc", "xoxb-1-2-a",
    "AIzaSyA", "ya29.a0A", "eyJhbGciOi.eyJzdWIi.abc", "Bearer abc", " hf_0123456789",
    "-----BEGIN RSA PRIVATE KEY-----\nabc", "postgres://me:hunter2@host/db", "https://:x@host",
    "https://ghp_0123456789abcdef@github.com/me/x", '"hf_0123456789abcdefghij"',
    "token=hf_0123456789abcdefghij", "--token hf_0123456789abcdefghij",
    "see: -----BEGIN PRIVATE KEY-----\\nabc", "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=abc==;", "Server=x;Password=abc",
    "Server=x;PWD = abc;", "SharedAccessSignature=sr=x", "host=x password=abc", "--password=abc",
    "https://x.blob.core.windows.net/c?sv=1&sig=abc%3D", "https://x/c?sig=abc",
    "https://x/?access_token=abc", "https://x/?api_key=abc", "https://x/?a=1&X-Amz-Signature=abc",
    "https://x/?X-Goog-Signature=abc", "https://hooks.slack.com/services/T0/B0/abc",
    "https://discord.com/api/webhooks/1/abc", "Basic dXNlcjpwYXNz", "Authorization: Basic dXNlcjpw",
    "Authorization: Bearer abc", "basic dXNlcjpwYXNzd29yZA==", "rk_live_abc123", "sk_test_abc123",
    "hvs.CAESIJabc123", "nvapi-abc123", "gsk_abc123", "SG.abc123.def456", "dop_v1_abc123",
    "{\"private_key\": \"abc\"}", "{'password': 'abc'}", "machine x login me password abc",
    "xapp-1-A", "ghs_0123456789abc", "key=AIzaSyA0123456789", "Bearer eyJhbGciOi.eyJzdWIi.abc",
    "x,sk-proj-abc123", "AGE-SECRET-KEY-1ABC", "https://me:ghp_0123@github.com/me/x",
]  # fmt: skip
PLAIN = [
    "1", "", "false", "ASIA", "asia-east1", "gs://bucket/key",
    "https://host:8080/path", "http://host/a@b", "user@host",
    "--xla_tpu_enable_x=true", "hf", "skip", "task-1", "a:b@c", "git+ssh://git@host/repo", "half_",
    "shelf_life", "gs://half_hf_x", "mask-1", "risk-free", "task-2,disk-3", "desk-sk", "PNG.file",
    "MSG.txt", "/data/hf_home/x", "basic", "Basic usage", "basic block",
    "Bearer", "password", "no password", "passwords.txt", "--max_tokens=5", "tokens=5", "sig=3",
    "https://x/?signal=1", "https://host/a?design=2", "https://slack.com/services",
    "-----BEGIN CERTIFICATE-----", "public key", "--num_passes=3", "pass=3", "step_token=7",
    "dsk_abc", "/a/task_gsk/b", "https://x/hf-mirror", "npm_config",
    "risk_test_set", "monkey=1",
    "keyboard=us", "--xla_dump_to=/x", "SG", "AKIA", "xoxo", "https://host/sk-learn",
    "sk-SK", "sk-learn", "hf_transfer", "hf_models/bert", "sk-SK.UTF-8", "pypi-mirror",
    "hf_bert_v2",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_of_secrets_is_refused(name):
    with pytest.raises(UserError, match=f"--env={name}=…: looks like a secret") as error:
        job(env=((name, "hunter2"),))
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_name_passes(name):
    assert job(env=((name, "hunter2"),)).env == ((name, "hunter2"),)


@pytest.mark.parametrize(
    "variable",
    [
        "PAD_TOKEN_ID=0", "HF_HUB_DISABLE_IMPLICIT_TOKEN=1", "DISABLE_AUTH=1", "USE_AUTH=false",
        "OAUTHLIB_INSECURE_TRANSPORT=1", "MY_TOKEN=[MASK]", "MY_TOKEN=<|endoftext|>", "KEY=label",
        "X_TOKEN=0.1", "STEP_KEY=42", "USE_PASSWORD=True", "AUTH=basic", "TOKEN=",
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_a_secret_passes_under_an_unclear_name(variable):
    name, _, value = variable.partition("=")
    assert job(env=((name, value),)).env == ((name, value),)


@pytest.mark.parametrize(
    "variable",
    ["PASSWORD=hunter", "DB_PASS=123456", "API_KEY=abc", "SECRET=word", "TOKEN=1234567890123"],
)
def test_a_plain_value_under_a_clear_name_is_refused(variable):
    with pytest.raises(UserError, match="looks like a secret"):
        job(env=(tuple(variable.split("=")),))


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_is_a_secret_is_refused_under_any_name(value):
    with pytest.raises(UserError, match="--env=X=…: its value looks like a secret") as error:
        job(env=(("X", value),))
    assert value not in str(error.value)


@pytest.mark.parametrize("value", PLAIN)
def test_a_harmless_value_passes(value):
    assert job(env=(("X", value),)).env == (("X", value),)
