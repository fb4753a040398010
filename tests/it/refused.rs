//! What is wrong is said, with the exit code that `docs/run-folder.md` promises.

use crate::command::{config, output, run};

#[test]
fn an_invalid_config_is_explained_and_nothing_is_started() {
    let dir = tempfile::tempdir().unwrap();
    for (extra, code, parts) in [
        (&["--set", "trainer.seeed=1"][..], 2, &["seeed", "did you mean `seed`?"][..]),
        (&["--set", "envs=[{id = \"nowhere\"}]"], 2, &["nowhere", "gradient_prophet"]),
        (&["--set", "envs=[{id = \"target_number\", args = {shotz = 1}}]"], 2, &["shotz", "shots"]),
        (&["--set", "model.renderer_name=llama3"], 2, &["llama3", "<|begin_of_text|>"]),
        (&["--set", "model.base_model=./no/such/folder"], 3, &["./no/such/folder"]),
        (&["--set", "tinker.base_url=http://10.0.0.1"], 2, &["tinker.base_url", "allow_insecure"]),
        (
            &["--set", "tinker={api_key_env = \"NOBODY_SETS_THIS\", base_url = \"http://127.0.0.1:1\"}"],
            2,
            &["NOBODY_SETS_THIS", "http://127.0.0.1:1"],
        ),
    ] {
        let folder = dir.path().join(extra[1].replace(['/', ':', '"'], "_"));
        let (status, _, stderr) = output(&mut run(&config("ci_test.toml"), &folder, extra));
        assert_eq!(status, Some(code), "{extra:?}: {stderr}");
        assert!(parts.iter().all(|part| stderr.contains(part)), "{extra:?}: {stderr}");
        assert!(!folder.join("checkpoints.jsonl").exists());
    }
    let (status, _, stderr) = output(&mut run(&dir.path().join("none.toml"), dir.path(), &[]));
    assert_eq!(status, Some(2));
    assert!(stderr.contains("none.toml"), "{stderr}");
}
