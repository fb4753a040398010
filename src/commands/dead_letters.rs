//! `minds-actors dead-letters`: lists, shows, requeues and deletes jobs that no worker finished.

use super::print_line;
use super::worker::broker_of;
use crate::cli::{DeadLettersArgs, DeadLettersCommand};
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::anyhow;
use minds_stages::remote::Broker;
use minds_stages::remote::dead_letters::{self, StoredLetter};
use minds_stages::remote::message::{Job, Work, decode};
use serde_json::json;
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
        DeadLettersCommand::Show { letters, job } => {
            with_letters(letters, std::slice::from_ref(job), async |broker, found| {
                for stored in found {
                    show(&broker, &stored).await?;
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
                print_line!("deleted {} dead letters", found.len());
                Ok(())
            })
        }
    }
}

/// Calls `act` with the dead letters of these jobs, or with all if `jobs` is empty.
fn with_letters<F>(
    args: &DeadLettersArgs,
    jobs: &[String],
    act: impl FnOnce(Broker, Vec<StoredLetter>) -> F,
) -> Result<(), CommandError>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let name = "minds-actors dead-letters";
    let (options, names) = broker_of(args.nats.clone(), &args.broker, args.run.as_deref(), name)?;
    super::system().block_on(async {
        let broker = Broker::connect_within(CONNECT_TIMEOUT, &options, names).await;
        let broker = broker.or_exit(ProcessExit::Unavailable)?;
        let mut found =
            dead_letters::list(&broker, args.run.as_deref()).await.or_exit(ProcessExit::Unavailable)?;
        if let Some(missing) = jobs.iter().find(|job| found.iter().all(|stored| stored.letter.job != **job)) {
            return Err(anyhow!("there is no dead letter {missing}")).or_exit(ProcessExit::Config);
        }
        found.retain(|stored| jobs.is_empty() || jobs.contains(&stored.letter.job));
        act(broker, found).await.or_exit(ProcessExit::Unavailable)
    })
}

fn as_json(stored: &StoredLetter) -> serde_json::Value {
    let letter = &stored.letter;
    json!({
        "job": letter.job,
        "run": letter.run,
        "environment": letter.environment,
        "stored": stored.stored,
        "cause": letter.cause,
        "bytes": stored.payload.len(),
    })
}

fn print_row(stored: &StoredLetter) {
    let letter = &stored.letter;
    print_line!(
        "{}  {}  {}  {}: {}",
        stored.stored,
        letter.run,
        letter.environment,
        letter.job,
        letter.cause
    );
}

async fn show(broker: &Broker, stored: &StoredLetter) -> anyhow::Result<()> {
    print_row(stored);
    let body = dead_letters::body(broker, stored).await?;
    let job: Job<'static> = decode(&body)?;
    match job.work {
        Work::Score { item, rollout } => {
            print_line!("reward of {} (item {}), sampled by {}", rollout.id, item.index, rollout.policy);
            for turn in &rollout.turns {
                print_line!("{}", turn.text);
            }
        }
        Work::Generate { item, sessions } => {
            let ids: Vec<String> = sessions.iter().map(|session| session.rollout.to_string()).collect();
            print_line!("rollouts {} of item {}", ids.join(", "), item.index);
        }
    }
    Ok(())
}
