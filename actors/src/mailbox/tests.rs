//! What a mailbox promises.

use super::*;
use actix::ActorContext;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

fn capacity(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Keeps the permits of all it receives, so that its mailbox fills up.
struct Plug {
    held: mpsc::UnboundedSender<(u32, MailboxPermit)>,
}
impl Actor for Plug {
    type Context = Context<Self>;
}
impl Handler<StageMessage<u32>> for Plug {
    type Result = ();
    fn handle(&mut self, message: StageMessage<u32>, _: &mut Context<Self>) {
        let (message, permit) = message.open();
        assert_ne!(message, 13, "poison");
        self.held.send((message, permit)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_than_capacity_is_ever_under_way() {
    LocalSet::new()
        .run_until(async {
            let (sender, receiver) = mailbox::<u32>("test", capacity(3));
            let (held, mut arrived) = mpsc::unbounded_channel();
            let _stage = launch(
                "plug",
                capacity(3),
                0,
                move || Plug { held: held.clone() },
                move |a| receiver.bind(a),
            );
            for task in 0..10 {
                let sender = sender.clone();
                tokio::task::spawn_local(async move { sender.send(task).await.unwrap() });
            }
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            let mut first = Vec::new();
            while let Ok(item) = arrived.try_recv() {
                first.push(item);
            }
            assert_eq!((first.len(), sender.stats().depth), (3, 3));
            drop(first.pop());
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            assert!(arrived.try_recv().is_ok(), "one permit made room for one message");
            assert!(arrived.try_recv().is_err());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_send_cancelled_while_waiting_sends_nothing() {
    LocalSet::new()
        .run_until(async {
            let (sender, receiver) = mailbox::<u32>("test", capacity(1));
            let (held, mut arrived) = mpsc::unbounded_channel();
            let _stage = launch(
                "plug",
                capacity(1),
                0,
                move || Plug { held: held.clone() },
                move |a| receiver.bind(a),
            );
            sender.send(1).await.unwrap();
            let limit = std::time::Duration::from_secs(1);
            assert!(tokio::time::timeout(limit, sender.send(2)).await.is_err());
            drop(arrived.recv().await);
            sender.send(3).await.unwrap();
            assert_eq!(arrived.recv().await.unwrap().0, 3);
            assert_eq!(sender.stats().sent, 2);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_receiver_gets_what_was_not_in_its_mailbox_and_the_rest_is_counted() {
    LocalSet::new()
        .run_until(async {
            let (sender, receiver) = mailbox::<u32>("test", capacity(4));
            let (held, mut arrived) = mpsc::unbounded_channel();
            let _stage = launch(
                "plug",
                capacity(4),
                1,
                move || Plug { held: held.clone() },
                move |a| receiver.bind(a),
            );
            let producer = sender.clone();
            let sending = tokio::task::spawn_local(async move {
                for message in 0..40 {
                    producer.send(message).await.unwrap();
                }
            });
            let mut seen = Vec::new();
            while !sending.is_finished() || !arrived.is_empty() {
                let limit = std::time::Duration::from_secs(1);
                if let Ok(Some((message, _slot))) = tokio::time::timeout(limit, arrived.recv()).await {
                    seen.push(message);
                }
            }
            let lost = sender.stats().lost as usize;
            assert!(!seen.contains(&13));
            assert!(lost < 4, "never more than were in the mailbox: {lost}");
            assert_eq!(seen.len() + lost + 1, 40, "39 and the poison");
            assert_eq!(sender.stats().depth, 0, "every permit came back");
        })
        .await;
}

#[tokio::test]
async fn a_closed_lane_gives_the_message_back() {
    let (sender, receiver) = mailbox::<u32>("test", capacity(1));
    receiver.close();
    assert_eq!(sender.send(7).await.unwrap_err().0, 7);
}

/// Stops itself on the first message.
struct Quitter;
impl Actor for Quitter {
    type Context = Context<Self>;
}
impl Handler<StageMessage<u32>> for Quitter {
    type Result = ();
    fn handle(&mut self, _: StageMessage<u32>, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

#[tokio::test]
async fn the_watching_task_distinguishes_an_end_from_a_panic() {
    LocalSet::new()
        .run_until(async {
            let (sender, receiver) = mailbox::<u32>("test", capacity(1));
            let quitter = launch("quitter", capacity(1), 0, || Quitter, move |a| receiver.bind(a));
            sender.send(1).await.unwrap();
            assert_eq!(quitter.ended().await, super::launch::StageExit::Finished);

            let (sender, receiver) = mailbox::<u32>("test", capacity(1));
            let (held, _arrived) = mpsc::unbounded_channel();
            let plug = launch(
                "plug",
                capacity(1),
                0,
                move || Plug { held: held.clone() },
                move |a| receiver.bind(a),
            );
            sender.send(13).await.unwrap();
            let super::launch::StageExit::Panicked(why) = plug.ended().await else { panic!("not a panic") };
            assert!(why.contains("poison"), "{why}");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_sender_waiting_for_a_permit_fails_when_the_receiver_is_gone() {
    LocalSet::new()
        .run_until(async {
            let (sender, receiver) = mailbox::<u32>("test", capacity(1));
            let (held, mut arrived) = mpsc::unbounded_channel();
            let plug = launch(
                "plug",
                capacity(1),
                0,
                move || Plug { held: held.clone() },
                move |a| receiver.bind(a),
            );
            sender.send(1).await.unwrap();
            let _slot = arrived.recv().await.unwrap();
            let waiting = tokio::spawn({
                let sender = sender.clone();
                async move { sender.send(2).await.unwrap_err().0 }
            });
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            assert!(!waiting.is_finished(), "the only permit is held");
            drop(plug);
            let limit = std::time::Duration::from_secs(60);
            let back = tokio::time::timeout(limit, waiting).await.expect("the sender waits for ever");
            assert_eq!(back.unwrap(), 2);
            tokio::time::timeout(limit, sender.closed()).await.expect("the mailbox is closed");
        })
        .await;
}
