//! What user code does wrong costs its own rollouts, each with its cause.

use super::{PythonOptions, Scripted, answers, block_on, cause, open, options, play_group, reward, try_open};
use minds_environments::worker::PythonEnvironment;
use serde_json::json;
use std::num::NonZeroUsize;
use std::time::Duration;

fn faults(change: impl FnOnce(&mut PythonOptions)) -> PythonEnvironment {
    let mut options = options("faults", &json!({}));
    options.workers = NonZeroUsize::new(1);
    change(&mut options);
    try_open(options).unwrap()
}

/// The environment serves on, in the same process or in the next one.
fn still_plays(env: &PythonEnvironment) {
    assert_eq!(reward(&answers(env, 0, &["nothing"])[0]), 1.0);
}

#[test]
fn a_process_that_ends_fails_its_rollouts_with_its_last_output_and_is_replaced() {
    let env = faults(|_| ());
    for (word, words) in [
        ("abort", &["ended by signal 6", "last words", "about to abort"][..]),
        ("leave 3", &["ended with code 3"]),
        ("segfault", &["ended by signal 11"]),
    ] {
        let found = cause(&answers(&env, 0, &[word])[0]);
        assert!(words.iter().all(|w| found.contains(w)) && found.contains("faults.py/0"), "{word}: {found}");
        still_plays(&env);
    }
}

#[test]
fn a_killed_process_with_sixteen_rollouts_in_flight_costs_only_those() {
    let env = faults(|options| options.workers = NonZeroUsize::new(2));
    let group =
        |words: Vec<String>| words.into_iter().map(|w| Scripted::new(move |_, _| w.clone())).collect();
    let doomed: Vec<_> =
        group((0..16).map(|n| if n == 15 { "abort".into() } else { "wait 600".into() }).collect());
    let others: Vec<_> = group(vec!["wait 1".into(); 16]);
    let (doomed, others) =
        block_on(async { tokio::join!(play_group(&env, 0, &doomed), play_group(&env, 1, &others)) });
    assert!(doomed.iter().all(|outcome| cause(outcome).contains("signal 6")), "{doomed:?}");
    assert!(others.iter().all(|outcome| reward(outcome) == 1.0), "{others:?}");
    still_plays(&env);
}

#[test]
fn what_a_process_has_started_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pid");
    let env = faults(|_| ());
    cause(&answers(&env, 0, &[&format!("orphan {}", path.display())])[0]);
    let pid = std::fs::read_to_string(&path).unwrap();
    // Killed; on a busy machine it may be on its way out for a while, and then wait to be reaped.
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let is_gone = || stat().map_or(true, |stat| stat.contains(") Z"));
    let gone = async {
        while !is_gone() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let gone = block_on(async { tokio::time::timeout(Duration::from_secs(30), gone).await });
    assert!(gone.is_ok(), "{:?}", stat());
}

#[test]
fn a_rollout_that_takes_too_long_is_cancelled_and_the_others_continue() {
    let env = faults(|options| options.rollout_timeout = Duration::from_secs(3));
    let found = answers(&env, 0, &["wait 600", "wait 1", "nothing"]);
    assert!(cause(&found[0]).contains("did not end within 3 s"), "{found:?}");
    assert_eq!((reward(&found[1]), reward(&found[2])), (1.0, 1.0));
    still_plays(&env);
}

#[test]
fn a_blocked_loop_is_waited_for_up_to_the_limit_and_then_killed() {
    // Longer than the pause between two signs of life, far shorter than the limit: alive.
    let env = faults(|_| ());
    assert_eq!(reward(&answers(&env, 0, &["block 8"])[0]), 1.0);
    let env = faults(|options| options.rollout_timeout = Duration::from_secs(7));
    let found = answers(&env, 0, &["block 600"]);
    assert!(cause(&found[0]).contains("did not end within 7 s"), "{found:?}");
    still_plays(&env);
}

#[test]
fn a_rollout_that_ignores_cancellation_keeps_its_slot_without_blocking_others() {
    let env = faults(|options| options.rollout_timeout = Duration::from_secs(2));
    assert!(cause(&answers(&env, 0, &["deaf"])[0]).contains("did not end within 2 s"));
    still_plays(&env);
}

#[test]
fn an_exception_is_a_cause_with_its_place() {
    let env = faults(|_| ());
    let found = answers(&env, 0, &["raising no such thing", "exiting", "unknown_word", "nothing"]);
    for (outcome, words) in found.iter().zip([
        &["ValueError: no such thing", "faults.py", "in raising"][..],
        &["SystemExit: 3"],
        &["AttributeError", "unknown_word"],
    ]) {
        assert!(words.iter().all(|word| cause(outcome).contains(word)), "{outcome:?}");
    }
    assert_eq!(reward(&found[3]), 1.0, "the process lives");
}

#[test]
fn a_failed_rollout_keeps_its_sampled_turns() {
    let env = faults(|options| options.rollout_timeout = Duration::from_secs(4));
    for word in ["raising x", "exiting", "wait 600", "leave 3"] {
        let failed = answers(&env, 0, &[word]).remove(0).unwrap_err();
        let texts: Vec<&str> = failed.turns.iter().map(|turn| &*turn.text).collect();
        assert_eq!(texts, [word], "{failed}");
    }
}

#[test]
fn output_never_reaches_the_messages_and_never_stalls() {
    let env = faults(|_| ());
    assert_eq!(reward(&answers(&env, 0, &["chatter"])[0]), 1.0);
    assert_eq!(reward(&answers(&env, 0, &["flood 200"])[0]), 1.0);
    assert_eq!(reward(&answers(&env, 0, &["read_input"])[0]), 0.0, "there is no input");
}

#[test]
fn a_malformed_message_ends_the_process_at_once() {
    let env = faults(|_| ());
    // Text, bytes that are not, a map of a kind that is not known; and text that the next heartbeat ends.
    for line in [&b"hello\n"[..], b"\xff\xff\n", b"{\"t\": 1}\n", b"hello"] {
        let bytes: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let found = cause(&answers(&env, 0, &[&format!("lie {bytes}")])[0]);
        assert!(found.contains("a line that is not a message"), "{bytes}: {found}");
        still_plays(&env);
    }
}

#[test]
fn the_wait_for_a_place_does_not_count_towards_a_rollouts_limit() {
    let env = faults(|options| {
        options.rollouts_per_worker = NonZeroUsize::MIN;
        options.rollout_timeout = Duration::from_secs(4);
    });
    // One after the other: the last has waited for five seconds when it begins.
    let found = answers(&env, 0, &["wait 1"; 6]);
    assert_eq!(found.iter().map(reward).collect::<Vec<_>>(), [1.0; 6]);
}

#[test]
fn a_process_sees_the_variables_of_the_list_and_those_that_are_named() {
    let env = faults(|options| options.pass_env = vec!["CARGO_MANIFEST_DIR".into()]);
    let found = answers(
        &env,
        0,
        &[
            "environment PATH",
            "environment CARGO_MANIFEST_DIR",
            "environment CARGO_PKG_NAME",
            "environment TINKER_API_KEY",
        ],
    );
    // The test itself runs with all of cargo's variables, and hides them from the processes of its user.
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
    assert!(std::env::var("CARGO_PKG_NAME").is_ok());
    assert_eq!(found.iter().map(reward).collect::<Vec<_>>(), [1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn an_environment_whose_processes_keep_ending_fails_with_their_output() {
    let env = faults(|_| ());
    let mut causes = Vec::new();
    for _ in 0..7 {
        causes.push(cause(&answers(&env, 0, &["leave 9"])[0]));
    }
    assert!(causes.iter().all(|cause| cause.contains("ended with code 9")), "{causes:?}");
}

#[test]
fn a_service_that_fails_is_named_as_the_cause() {
    let env = open("observe");
    let policy = Scripted::failing(|_, _| {
        Err(minds_core::service::BackendError::Unavailable("the engine is being repaired".into()))
    });
    let found = super::play(&env, 0, &policy);
    assert!(cause(&found).contains("the engine is being repaired"), "{found:?}");
    assert!(found.err().unwrap().cause.is_retryable());
}

#[test]
fn a_dropped_rollout_is_cancelled() {
    let env = faults(|options| options.rollouts_per_worker = NonZeroUsize::MIN);
    let policy = [Scripted::new(|_, _| "wait 600".into())];
    block_on(async {
        let playing = play_group(&env, 0, &policy);
        let limit = tokio::time::timeout(Duration::from_secs(2), playing).await;
        assert!(limit.is_err());
    });
    still_plays(&env);
}
