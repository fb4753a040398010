//! `minds-actors dead-letters`: lists, shows, requeues and deletes jobs that no worker finished.

use super::worker::{BrokerAddress, broker_of};
use super::{count, print_line};
use crate::cli::{DeadLettersArgs, DeadLettersCommand};
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::anyhow;
use jiff::Timestamp;
use minds_stages::remote::Broker;
use minds_stages::remote::dead_letters::{self, StoredLetter};
use minds_stages::remote::message::{Job, JobWork, decode};
use serde_json::{Value, json};
use std::future::Future;
use std::time::Duration;

/// Timeout for the connection to the broker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the `dead-letters` command.
///
/// # Errors
/// The broker is unreachable or rejects a request (exit code 3), or a given job is not a dead letter (2).
pub fn run(command: &DeadLettersCommand) -> Result<(), CommandError> {
    match command {
        DeadLettersCommand::List { letters, json } => with_letters(letters, &[], async |_, found| {
            for stored in &found {
                if *json { print_line!("{}", as_json(stored)) } else { print_row(stored) }
            }
            if found.is_empty() && !json {
                print_line!("there are no dead letters");
            }
            Ok(())
        }),
        DeadLettersCommand::Show { letters, job, json } => {
            with_letters(letters, std::slice::from_ref(job), async |broker, found| {
                for stored in found {
                    show(&broker, &stored, *json).await?;
                }
                Ok(())
            })
        }
        DeadLettersCommand::Replay { letters, jobs } => with_letters(letters, jobs, async |broker, found| {
            for stored in &found {
                dead_letters::replay(&broker, stored).await?;
                print_line!("queued {} again", stored.letter.job);
            }
            Ok(())
        }),
        DeadLettersCommand::Purge { letters, jobs, all: _ } => {
            with_letters(letters, jobs, async |broker, found| {
                for stored in &found {
                    dead_letters::remove(&broker, stored).await?;
                }
                print_line!("deleted {}", count(found.len(), "dead letter"));
                Ok(())
            })
        }
    }
}

/// Calls `act` with the dead letters of these jobs, each given by the start of its id, or with all if `jobs` is empty.
fn with_letters<F>(
    args: &DeadLettersArgs,
    jobs: &[String],
    act: impl FnOnce(Broker, Vec<StoredLetter>) -> F,
) -> Result<(), CommandError>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let name = "minds-actors dead-letters";
    let address = BrokerAddress { url: args.nats.clone(), argument: "--nats" };
    let (options, names) = broker_of(address, &args.broker, args.run.as_deref(), name)?;
    super::system().block_on(async {
        let broker = Broker::connect_within(CONNECT_TIMEOUT, &options, names).await;
        let broker = broker.or_exit(ProcessExit::Unavailable)?;
        let mut found =
            dead_letters::list(&broker, args.run.as_deref()).await.or_exit(ProcessExit::Unavailable)?;
        for job in jobs {
            let matching = found.iter().filter(|stored| stored.letter.job.starts_with(&**job)).count();
            let problem = match matching {
                1 => continue,
                0 => anyhow!("there is no dead letter {job}"),
                _ => anyhow!("{matching} dead letters begin with {job}: give more of the id"),
            };
            return Err(problem).or_exit(ProcessExit::Config);
        }
        found
            .retain(|stored| jobs.is_empty() || jobs.iter().any(|job| stored.letter.job.starts_with(&**job)));
        act(broker, found).await.or_exit(ProcessExit::Unavailable)
    })
}

/// Time at which a letter was stored, in RFC 3339 with milliseconds.
fn time(stored: &StoredLetter) -> String {
    let time = Timestamp::try_from(stored.stored).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.3}")
}

fn as_json(stored: &StoredLetter) -> Value {
    let letter = &stored.letter;
    json!({
        "job": letter.job,
        "run": letter.run,
        "environment": letter.environment,
        "stored": time(stored),
        "cause": letter.cause,
        "bytes": stored.payload.len(),
    })
}

fn print_row(stored: &StoredLetter) {
    let letter = &stored.letter;
    print_line!("{}  {}  {}  {}: {}", time(stored), letter.run, letter.environment, letter.job, letter.cause);
}

async fn show(broker: &Broker, stored: &StoredLetter, json: bool) -> anyhow::Result<()> {
    let body = dead_letters::body(broker, stored).await?;
    let job: Job<'static> = decode(&body)?;
    if json {
        let mut row = as_json(stored);
        row["work"] = serde_json::to_value(&job.work)?;
        print_line!("{row}");
        return Ok(());
    }
    print_row(stored);
    match job.work {
        JobWork::Score { item, rollout } => {
            print_line!("reward of {} (item {}), sampled by {}", rollout.id, item.index, rollout.policy);
            for turn in &rollout.turns {
                print_line!("{}", turn.text);
            }
        }
        JobWork::Generate { item, sessions } => {
            let ids: Vec<String> = sessions.iter().map(|session| session.rollout.to_string()).collect();
            let noun = if ids.len() == 1 { "rollout" } else { "rollouts" };
            print_line!("{noun} {} of item {}", ids.join(", "), item.index);
        }
    }
    Ok(())
}
