//! One file per command. Only these modules print.

pub mod check;
mod cost;
pub mod dead_letters;
pub mod doctor;
pub mod envs;
pub mod eval;
pub mod models;
pub mod nats;
pub mod report;
mod resume;
pub mod run;
pub mod serve;
pub mod shell;
pub mod signals;
pub mod simulate;
pub mod track;
pub mod worker;

/// Prints a line for human readers.
macro_rules! print_line {
    ($($text:tt)*) => { $crate::terminal::line(format_args!($($text)*)) };
}
pub(crate) use print_line;

/// A count with its noun, with a plural s unless it is 1.
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The actor system, with threads for everything else. From here on, SIGUSR1 no longer ends the process.
fn system() -> actix::SystemRunner {
    let system = actix::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("the operating system refused threads for the runtime")
    });
    system.block_on(async { signals::ignore_user_signal() });
    system
}
