"""The command lines whose outcome under torchrun is on record.

Words: {out} is a new folder for what the case writes, {probe} the worker script, {port} a free
port, {module} the worker as a module. A case starts one launcher for each entry of `nodes`.
"""
from dataclasses import dataclass, field


@dataclass
class Case:
    group: str
    name: str
    nodes: list  # of lists of arguments
    environment: dict = field(default_factory=dict)
    command: str = "run"  # or "launch"
    signal: str = ""  # to send to the launcher once all workers are there
    workers: int = 1  # how many that is
    needs: str = ""  # what the machine must have for the record to hold: "2 cpus", "no gpu"


P = "{probe}"
MODULE = ["-m", "probe"]
LOGS = "--log-dir={out}/logs"
TWO = "--nproc-per-node=2"

CASES = []


def case(group, name, *arguments, **more):
    CASES.append(Case(group, name, [list(arguments)], **more))


def nodes(group, name, *arguments, **more):
    CASES.append(Case(group, name, [list(node) for node in arguments], **more))


# Command lines: spellings, and where the script begins.
case("usage", "bare", P)
case("usage", "arguments", P, "a", "--b", "c d", "")
case("usage", "value_after_blank", "--nproc-per-node", "2", P)
case("usage", "underscores", "--nproc_per_node=2", "--max_restarts=1", P)
case("usage", "abbreviation", "--nproc-per", "2", P)
case("usage", "abbreviation_underscore", "--nproc_p=2", P)
case("usage", "ambiguous", "--rdzv", "x", P)
case("usage", "unknown_option", "--nonsense", P)
case("usage", "missing_value", "--nnodes")
case("usage", "option_as_value", "--role", "--standalone", P)
case("usage", "flag_with_value", "--standalone=1", P)
case("usage", "no_script")
case("usage", "help", "--help")
case("usage", "short_help", "-h", "--nonsense")
case("usage", "last_value_counts", "--role=a", "--role=b", P)
case("usage", "options_after_script", P, "--nnodes=3", "--standalone", "-t", "3")
case("usage", "dashes_after_script", P, "--", "--x")
case("usage", "dashes_twice", P, "--", "--", "x")
case("usage", "dashes_before_script", "--", P, "--", "x")
case("usage", "dashes_later", P, "x", "--", "y")
case("usage", "local_rank_in_arguments", TWO, P, "${local_rank}", "a$local_rank", "$$x", "$other",
     "${local_rank", "$local_ranks")
case("usage", "missing_script", "no_such_script.py")
case("usage", "bad_nnodes", "--nnodes=2:1", P)
case("usage", "bad_nnodes_word", "--nnodes=two", P)
case("usage", "bad_nproc", "--nproc-per-node=banana", P)
case("usage", "bad_nproc_zero", "--nproc-per-node=0", P)
case("usage", "bad_max_restarts", "--max-restarts=x", P)
case("usage", "negative_max_restarts", "--max-restarts", "-1", P)
case("usage", "bad_master_port", "--master-port=x", P)
case("usage", "bad_monitor_interval", "--monitor-interval=0", P)
case("usage", "bad_start_method", "--start-method=thread", P)
case("usage", "bad_redirects", "--redirects=4", P)
case("usage", "bad_tee", "--tee=0:1,", P)
case("usage", "bad_filter", "--local-ranks-filter=a", P)
case("usage", "bad_rdzv_conf", "--rdzv-conf=a=", P)
case("usage", "bad_backend", "--rdzv-backend=nonsense", "--rdzv-endpoint=localhost:1", P)
case("usage", "etcd", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=localhost:1", P)
case("usage", "bad_numa", "--numa-binding=near", P)
case("usage", "bad_handler", "--event-log-handler=nonsense", P)
case("usage", "bad_shutdown_timeout", "--shutdown-timeout=-1", P)
case("usage", "logs_specs", "--logs-specs=nonsense", P)
case("usage", "module_and_no_python", "-m", "--no-python", "x")
case("usage", "log_dir_is_a_file", "--log-dir={probe}", P)
case("usage", "gpu_without_gpu", "--nproc-per-node=gpu", P, needs="no gpu")

# What a worker is given.
case("workers", "two", TWO, P)
case("workers", "cpu", "--nproc-per-node=cpu", P, needs="2 cpus")
case("workers", "auto", "--nproc-per-node=auto", P, needs="2 cpus, no gpu")
case("workers", "role", "--role=trainer", TWO, P)
case("workers", "standalone", "--standalone", TWO, P)
case("workers", "standalone_beats_id", "--standalone", "--rdzv-id=mine", P)
case("workers", "id_alone", "--rdzv-id=mine", P)
case("workers", "static_port", "--master-port={port}", P)
case("workers", "static_address", "--master-addr=localhost", "--master-port={port}", P)
case("workers", "static_endpoint", "--rdzv-endpoint=localhost:{port}", "--rdzv-id=job1", TWO, P)
case("workers", "static_node_rank", "--node-rank=0", "--master-port={port}", P)
case("workers", "c10d", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}",
     "--rdzv-id=job2", TWO, P)
case("workers", "c10d_conf", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}",
     "--rdzv-conf=join_timeout=30,is_host=1", P)
case("workers", "local_addr", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}",
     "--local-addr=127.0.0.1", P)
case("workers", "private_store", "--standalone", P,
     environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
case("workers", "max_restarts", "--max-restarts=3", P)
case("workers", "monitor_interval", "--monitor-interval=0.5", P)
case("workers", "start_method", "--start-method=fork", P)
case("workers", "event_log_handler", "--event-log-handler=console", P)
case("workers", "module", *MODULE, "a")
case("workers", "no_python", "--no-python", "{source}/probe.sh", "a")
case("workers", "no_python_on_path", "--no-python", "probe.sh", "a")
case("workers", "run_path", "--run-path", P, "a")
case("workers", "python_exec", P, environment={"PYTHON_EXEC": "{python}"})
case("workers", "signals_to_handle", "--signals-to-handle=SIGTERM,SIGUSR1", P)
case("workers", "threads_given", TWO, P, environment={"OMP_NUM_THREADS": "3"})
case("workers", "nccl_given", P, environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
case("workers", "devices_given", TWO, P, environment={"CUDA_VISIBLE_DEVICES": "3,1"})
case("workers", "virtual_local_rank", "--virtual-local-rank", TWO, P)
case("workers", "virtual_local_rank_devices", "--virtual-local-rank", TWO, P,
     environment={"CUDA_VISIBLE_DEVICES": "4, 6"})
case("workers", "virtual_local_rank_too_few", "--virtual-local-rank", TWO, P,
     environment={"CUDA_VISIBLE_DEVICES": "4"})
case("workers", "virtual_arguments", "--virtual-local-rank", TWO, P, "${local_rank}")
case("workers", "launch", TWO, P, "a", command="launch")
case("workers", "launch_use_env", "--use-env", TWO, P, "a", command="launch")
case("workers", "launch_no_python", "--no-python", "{source}/probe.sh", command="launch")
case("workers", "launch_no_python_use_env", "--no-python", "--use_env", "{source}/probe.sh",
     command="launch")

# The same by environment variables.
for variable, value, *arguments in [
    ("NPROC_PER_NODE", "2", P),
    ("ROLE", "trainer", P),
    ("MAX_RESTARTS", "2", P),
    ("NNODES", "1:1", P),
    ("MASTER_PORT", "{port}", P),
    ("MASTER_ADDR", "localhost", "--master-port={port}", P),
    ("NODE_RANK", "0", "--master-port={port}", P),
    ("RDZV_BACKEND", "c10d", "--rdzv-endpoint=localhost:{port}", "--rdzv-id=j", P),
    ("RDZV_ENDPOINT", "localhost:{port}", "--rdzv-id=j", P),
    ("RDZV_ID", "job3", "--master-port={port}", P),
    ("RDZV_CONF", "nonsense", P),
    ("STANDALONE", "1", "--master-port={port}", P),
    ("MONITOR_INTERVAL", "0.2", P),
    ("START_METHOD", "fork", P),
    ("EVENT_LOG_HANDLER", "console", P),
    ("MODULE", "1", "probe"),
    ("NO_PYTHON", "1", "{source}/probe.sh"),
    ("RUN_PATH", "1", P),
    ("LOG_DIR", "{out}/logs", P),
    ("REDIRECTS", "1", LOGS, P),
    ("TEE", "2", LOGS, P),
    ("LOCAL_RANKS_FILTER", "1", TWO, P),
    ("DUPLICATE_STDOUT_FILTERS", "apple", "-t3", LOGS, P),
    ("DUPLICATE_STDERR_FILTERS", "pear", "-t3", LOGS, P),
    ("LOCAL_ADDR", "127.0.0.1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}", P),
    ("SIGNALS_TO_HANDLE", "SIGTERM", P),
    ("VIRTUAL_LOCAL_RANK", "1", TWO, P),
]:
    case("variables", "pet_" + variable.lower(), *arguments,
         environment={"PET_" + variable: value})
case("variables", "pet_flag_off", "--master-port={port}", P, environment={"PET_STANDALONE": "0"})
case("variables", "pet_flag_word", P, environment={"PET_STANDALONE": "true"})
case("variables", "pet_flag_empty", P, environment={"PET_STANDALONE": ""})
case("variables", "pet_bad_number", P, environment={"PET_MAX_RESTARTS": "x"})
case("variables", "command_line_first", "--role=line", P, environment={"PET_ROLE": "variable"})
case("variables", "kubeflow", P, environment={
    "PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": "{port}"})

# Files and the console.
case("logs", "nothing_redirected", LOGS, TWO, P)
case("logs", "redirect_both", LOGS, TWO, "-r", "3", P)
case("logs", "redirect_stdout", LOGS, TWO, "--redirects=1", P)
case("logs", "redirect_stderr", LOGS, TWO, "-r2", P)
case("logs", "redirect_map", LOGS, TWO, "-r", "0:1,1:2", P)
case("logs", "redirect_map_partly", LOGS, TWO, "-r", "1:3", P)
case("logs", "tee_both", LOGS, TWO, "-t", "3", P)
case("logs", "tee_stdout", LOGS, TWO, "--tee=1", P)
case("logs", "tee_map", LOGS, TWO, "-t0:2,1:1", P)
case("logs", "tee_and_redirect", LOGS, TWO, "-t1", "-r3", P)
case("logs", "role_in_prefix", LOGS, "--role=eval", "-t3", P)
case("logs", "prefix_template", LOGS, TWO, "-t3", P, environment={
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name} ${rank}/${local_rank} $x]: "})
case("logs", "filter_plain", TWO, "--local-ranks-filter=1", P)
case("logs", "filter_tee", LOGS, TWO, "-t3", "--local-ranks-filter=0", P)
case("logs", "filter_redirect", LOGS, TWO, "-r1", "--local-ranks-filter=1", P)
case("logs", "filter_two", TWO, "--local_ranks_filter", "0,1", P)
case("logs", "duplicate_stdout", LOGS, TWO, "-t3", "--duplicate-stdout-filters=apple,plum", P)
case("logs", "duplicate_nothing", LOGS, TWO, "-t3", "--duplicate-stdout-filters=plum", P)
case("logs", "duplicate_stderr_comma", LOGS, TWO, "-t3", "--duplicate-stderr-filters=pear,,", P)
case("logs", "duplicate_without_tee", LOGS, "-r3", "--duplicate-stdout-filters=apple", P)
case("logs", "no_files", "--log-dir=/dev/null", "-t3", P)
case("logs", "run_id_in_name", LOGS, "-r3", "--master-port={port}", "--rdzv-id=job4", P)
case("logs", "log_dir_in_depth", "--log-dir={out}/logs/a/b", "-r3", P)

# Failures, restarts and signals.
case("failures", "exit_code", TWO, P, "do:fail=1:3", workers=2)
case("failures", "exit_code_alone", P, "do:fail=0:7")
case("failures", "killed", TWO, P, "do:kill=0:SIGKILL")
case("failures", "aborted", P, "do:kill=0:SIGABRT")
case("failures", "error_file", LOGS, P, "do:report", "do:fail=0:1")
case("failures", "error_file_restart", LOGS, "--max-restarts=1", P, "do:report", "do:fail0=0:1")
case("failures", "reply_file", LOGS, P, "do:report", "do:fail=0:4",
     environment={"TORCHELASTIC_ERROR_FILE": "{out}/logs/reply.json"})
case("failures", "restart_helps", LOGS, "-r3", TWO, "--max-restarts=2", P, "do:fail0=1:3")
case("failures", "restarts_used_up", LOGS, "--max-restarts=1", P, "do:fail=0:3")
case("failures", "native", "--no-python", "{source}/probe.sh", "do:fail=0:5")
case("failures", "sigterm", TWO, P, "do:wait", signal="SIGTERM", workers=2)
case("failures", "sigint", TWO, P, "do:wait", signal="SIGINT", workers=2)
case("failures", "sighup", P, "do:wait", signal="SIGHUP")
case("failures", "sigusr1_listed", "--signals-to-handle=SIGUSR1", P, "do:wait", signal="SIGUSR1")
case("failures", "shutdown_timeout", "--shutdown-timeout=1", P, "do:stubborn", signal="SIGTERM")
case("failures", "shutdown_timeout_variable", P, "do:stubborn", signal="SIGTERM",
     environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})
case("failures", "shutdown_timeout_pet", P, "do:stubborn", signal="SIGTERM",
     environment={"PET_SHUTDOWN_TIMEOUT": "1"})

# Several nodes, all on this machine.
STATIC = ["--nnodes=2", "--master-addr=127.0.0.1", "--master-port={port}"]
C10D = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job5"]
nodes("nodes", "static", STATIC + ["--node-rank=0", TWO, P], STATIC + ["--node-rank=1", TWO, P])
nodes("nodes", "static_unequal", STATIC + ["--node-rank=0", TWO, P],
      STATIC + ["--node-rank=1", P])
nodes("nodes", "static_pet", [P], [P], environment={
    "PET_NNODES": "2", "PET_NODE_RANK": "{node}", "PET_MASTER_ADDR": "127.0.0.1",
    "PET_MASTER_PORT": "{port}"})
nodes("nodes", "c10d", C10D + ["--nnodes=2", P], C10D + ["--nnodes=2", P])
nodes("nodes", "c10d_range", *[C10D + ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=15", P]] * 2)
nodes("nodes", "roles", STATIC + ["--node-rank=0", "--role=a", TWO, P],
      STATIC + ["--node-rank=1", "--role=b", P])
