//! One file per verb. Only here is anything printed.

pub mod envs;
pub mod eval;
pub mod models;
pub mod progress;
mod resume;
pub mod run;
pub mod serve;
pub mod signals;
pub mod simulate;

/// Prints a line to standard output. A reader that has gone must not end a run, so a failure is not one.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        drop(writeln!(std::io::stdout(), $($text)*));
    }};
}
pub(crate) use say;

/// What actors live in, with threads for everything else.
fn system() -> actix::SystemRunner {
    actix::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("the operating system refused threads for the runtime")
    })
}
