//! `minds-actors nats`: checks whether a broker is ready for jobs, and prints the setup that an operator needs.

use super::worker::{BrokerAddress, broker_of};
use super::{count, print_line};
use crate::cli::NatsCommand;
use crate::config::error::KeyProblem;
use crate::config::file::NatsConfig;
use crate::config::nats;
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::anyhow;
use minds_stages::remote::{Broker, BrokerError, StreamNames, StreamSettings, probe, probe_run};
use std::time::Duration;

/// Timeout for the connection to the broker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Payload limit below which many jobs need the object store, in bytes.
const SMALL_PAYLOAD: usize = 256 << 10;

/// Runs the `nats` command.
///
/// # Errors
/// The broker is unreachable or rejects a request (exit code 3), or an argument is invalid (2).
pub fn run(command: &NatsCommand) -> Result<(), CommandError> {
    let NatsCommand::Check { url, broker, replicas, max_bytes, run, dry_run, permissions, env } = command;
    let given = NatsConfig { replicas: *replicas, max_bytes: *max_bytes, ..NatsConfig::default() };
    let settings = nats::settings(&given)
        .map_err(|KeyProblem { key, problem }| {
            anyhow!("--{} {problem}", key.trim_start_matches("nats.").replace('_', "-"))
        })
        .or_exit(ProcessExit::Config)?;
    if let Some(run) = permissions {
        let names =
            nats::names(broker.stream.as_deref()).map_err(|error| anyhow!("--stream {}", error.problem));
        if let Some(env) = env.iter().find(|env| env.is_empty()) {
            return Err(anyhow!("--env is {env:?}: give the name of an environment"))
                .or_exit(ProcessExit::Config);
        }
        print_permissions(&names.or_exit(ProcessExit::Config)?, run, env);
        return Ok(());
    }
    let address = BrokerAddress { url: url.clone(), argument: "the argument URL" };
    let (options, names) = broker_of(address, broker, run.as_deref(), "minds-actors nats check")?;
    super::system().block_on(async {
        let broker = Broker::connect_within(CONNECT_TIMEOUT, &options, names).await;
        let broker = broker.or_exit(ProcessExit::Unavailable)?;
        check(&broker, settings, run.as_deref(), *dry_run).await.or_exit(ProcessExit::Unavailable)
    })
}

async fn check(
    broker: &Broker,
    settings: StreamSettings,
    run: Option<&str>,
    dry_run: bool,
) -> Result<(), BrokerError> {
    let server = broker.client.server_info();
    print_line!("broker       {}, nats-server {}", broker.address(), server.version);
    let limit = server.max_payload;
    let advice = if limit < SMALL_PAYLOAD { "; larger jobs use the slower object store" } else { "" };
    print_line!("payload      up to {} KiB{advice}", limit >> 10);
    let stream = match broker.stream().await {
        Err(BrokerError::NoStream { .. }) if dry_run => {
            print_line!("stream       {} does not exist; create it with:", broker.names.stream());
            print_line!("{}", create_command(&broker.names, settings));
            return Ok(());
        }
        Err(BrokerError::NoStream { .. }) => {
            let made = broker.open_stream(settings).await?;
            print_line!("stream       created {}", broker.names.stream());
            made
        }
        found => found?,
    };
    let info = stream.cached_info();
    let most = info.config.max_bytes;
    let most = if most > 0 { format!("{} MiB", most >> 20) } else { "no limit".into() };
    print_line!(
        "stream       {}: {}, {} KiB of {most}, {} of each",
        info.config.name,
        count(info.state.messages as usize, "message"),
        info.state.bytes >> 10,
        if info.config.num_replicas == 1 {
            "1 copy".into()
        } else {
            format!("{} copies", info.config.num_replicas)
        }
    );
    if dry_run {
        return Ok(());
    }
    match run {
        Some(run) => {
            probe_run(broker, run).await?;
            print_line!("permissions  a test job of the run {run} was published and deleted");
        }
        None => {
            probe(broker).await?;
            print_line!("permissions  a test job was published, delivered and acknowledged");
        }
    }
    Ok(())
}

/// The command that creates the stream with the NATS command-line client.
fn create_command(names: &StreamNames, settings: StreamSettings) -> String {
    format!(
        "nats stream add {} --subjects '{}' --retention work --storage file --discard new --discard-per-subject \
         --max-msgs-per-subject 1 --max-bytes {} --max-age {}s --replicas {} --defaults",
        names.stream(),
        names.stored().join(","),
        settings.max_bytes,
        settings.max_age.as_secs(),
        settings.replicas
    )
}

/// Prints the `authorization` of the server's configuration with a user for the run and one for its workers, which have
/// the least permissions. `envs` are the names of the run's environments; empty for a placeholder.
fn print_permissions(names: &StreamNames, run: &str, envs: &[String]) {
    let stream = names.stream();
    let bucket = names.bucket(run);
    let inbox = names.inbox(run);
    let results = names.result_consumer(run);
    let run_may = [
        format!("{stream}.job.{run}.>"),
        format!("{stream}.run.{run}"),
        format!("{stream}.cancel.{run}"),
        // The run asks at its start whether another process is the same run.
        format!("{stream}.ask.{run}"),
        format!("$JS.API.STREAM.*.{stream}"),
        format!("$JS.API.STREAM.MSG.*.{stream}"),
        format!("$JS.API.CONSUMER.*.{stream}.>"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{results}"),
        format!("$JS.ACK.{stream}.{results}.>"),
        format!("$JS.API.STREAM.*.OBJ_{bucket}"),
        format!("$JS.API.STREAM.MSG.*.OBJ_{bucket}"),
        format!("$JS.API.DIRECT.GET.OBJ_{bucket}.>"),
        format!("$JS.API.CONSUMER.*.OBJ_{bucket}.>"),
        format!("$O.{bucket}.>"),
        "$JS.FC.>".into(),
        format!("{inbox}.>"),
    ];
    let run_hears = [format!("{stream}.ask.{run}"), format!("{stream}.worker.{run}"), format!("{inbox}.>")];
    let placeholder = ["ENVIRONMENT".to_owned()];
    let mut worker_may = vec![
        format!("{stream}.result.{run}.*"),
        format!("{stream}.dead.{run}.>"),
        format!("{stream}.ask.{run}"),
        format!("{stream}.worker.{run}"),
        format!("$JS.API.STREAM.INFO.OBJ_{bucket}"),
        format!("$JS.API.STREAM.PURGE.OBJ_{bucket}"),
        format!("$JS.API.STREAM.MSG.GET.OBJ_{bucket}"),
        format!("$JS.API.DIRECT.GET.OBJ_{bucket}.>"),
        format!("$JS.API.CONSUMER.*.OBJ_{bucket}.>"),
        format!("$O.{bucket}.>"),
        "$JS.FC.>".into(),
    ];
    for env in if envs.is_empty() { &placeholder } else { envs } {
        let consumer = names.job_consumer(run, env);
        worker_may.extend([
            format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            format!("$JS.ACK.{stream}.{consumer}.>"),
        ]);
    }
    let worker_hears =
        [format!("{stream}.run.{run}"), format!("{stream}.cancel.{run}"), format!("{inbox}.>")];
    print_line!(
        "# For the configuration of nats-server, which reads the passwords from its environment variables."
    );
    print_line!("authorization {{ users: [");
    print_line!("# The run `{run}`. It can read and delete the jobs of other runs of the same stream.");
    print_user(&format!("{run}-run"), "RUN_PASSWORD", &run_may, &run_hears);
    print_line!("# Its workers, started with `--run {run}`.");
    if envs.is_empty() {
        print_line!(
            "# Repeat the lines with ENVIRONMENT for each environment, or give their names with `--env`."
        );
    }
    print_user(&format!("{run}-worker"), "WORKER_PASSWORD", &worker_may, &worker_hears);
    print_line!("] }}");
}

fn print_user(user: &str, password: &str, may: &[String], hears: &[String]) {
    let list =
        |subjects: &[String]| subjects.iter().map(|subject| format!("\"{subject}\"")).collect::<Vec<_>>();
    print_line!("{{ user: \"{user}\", password: ${password}, permissions: {{");
    print_line!("  publish: [{}]", list(may).join(",\n    "));
    print_line!("  subscribe: [{}] }} }}", list(hears).join(", "));
}
