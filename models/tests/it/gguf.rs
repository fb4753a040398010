//! GGUF files: encodings, layout, and every kind of damage.

use crate::make::{GgufFile, Meta, f32_bytes, small, small_gguf, write};
use half::{bf16, f16};
use minds_models::{ModelError, ModelFiles};
use proptest::prelude::*;
use std::io::Write;

fn open(file: &GgufFile) -> Result<ModelFiles, ModelError> {
    open_bytes(&file.bytes())
}

fn open_bytes(bytes: &[u8]) -> Result<ModelFiles, ModelError> {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(bytes).unwrap();
    // Everything beside tensor data is read on opening, and the open handle outlives the name.
    let checkpoint = ModelFiles::open(file.path())?;
    drop(file);
    Ok(checkpoint)
}

fn complaint(file: &GgufFile) -> String {
    open(file).unwrap_err().to_string()
}

#[test]
fn architecture_is_read_from_the_metadata() {
    assert_eq!(*open(&small_gguf()).unwrap().architecture(), small());
}

#[test]
fn tensors_have_hugging_face_names() {
    let checkpoint = open(&small_gguf()).unwrap();
    let norm = checkpoint.tensor("model.norm.weight").unwrap().into_values();
    assert_eq!(norm, (1000..1008).map(|v| v as f32).collect::<Vec<_>>());
    assert!(matches!(checkpoint.tensor("lm_head.weight"), Err(ModelError::NoTensor { .. })));
}

#[test]
fn llama_q_and_k_rows_are_put_into_half_split_order() {
    let checkpoint = open(&small_gguf()).unwrap();
    let rows = |name: &str| -> Vec<usize> {
        let data = checkpoint.tensor(name).unwrap().into_values();
        data.chunks(8).map(|row| (row[0] as usize % 1000) / 8).collect()
    };
    assert_eq!(rows("model.layers.0.self_attn.q_proj.weight"), [0, 2, 1, 3, 4, 6, 5, 7]);
    assert_eq!(rows("model.layers.0.self_attn.k_proj.weight"), [0, 2, 1, 3]);
    assert_eq!(rows("model.layers.0.self_attn.v_proj.weight"), [0, 1, 2, 3]);
    assert_eq!(rows("model.layers.0.self_attn.o_proj.weight"), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn qwen_rows_stay_as_they_are() {
    let mut file = small_gguf();
    for (key, _) in &mut file.meta {
        *key = key.replace("llama.", "qwen2.");
    }
    file.set("general.architecture", Meta::Text("qwen2"));
    let data = open(&file).unwrap().tensor("model.layers.0.self_attn.q_proj.weight").unwrap().into_values();
    assert!(data.windows(2).all(|pair| pair[1] == pair[0] + 1.0));
}

#[test]
fn every_encoding_gives_its_numbers() {
    let wanted: Vec<f32> = (0..32).map(|i| i as f32 / 4.0 - 3.0).collect();
    let mut q8 = f16::from_f32(0.25).to_le_bytes().to_vec();
    q8.extend((0..32).map(|i| (i as i8 - 12) as u8));
    // d = 0.5 and m = -3: the low halves are numbers 0 to 15, the high halves 16 to 31.
    let mut q4 = f16::from_f32(0.5).to_le_bytes().to_vec();
    q4.extend(f16::from_f32(-3.0).to_le_bytes());
    q4.extend((0..16u8).map(|i| i | (15 - i) << 4));
    let from_q4: Vec<f32> =
        (0..16).map(|i| i as f32 / 2.0 - 3.0).chain((0..16).map(|i| (15 - i) as f32 / 2.0 - 3.0)).collect();
    let cases = [
        (0, f32_bytes(wanted.clone()), wanted.clone()),
        (1, wanted.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(), wanted.clone()),
        (30, wanted.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(), wanted.clone()),
        (8, q8, wanted.clone()),
        (3, q4, from_q4),
    ];
    for (kind, block, wanted) in cases {
        let mut file = small_gguf();
        // 8 x 32: one block a row
        file.set("llama.feed_forward_length", Meta::U32(32));
        for (name, shape, tensor_kind, data) in &mut file.tensors {
            if name.contains("ffn_") && !name.contains("norm") {
                for size in shape.iter_mut().filter(|size| **size == 8).take(1) {
                    *size = 32;
                }
                if name.contains("down") {
                    *shape = vec![8, 32];
                    *tensor_kind = kind;
                    *data = block.repeat(8);
                } else {
                    *shape = vec![32, 8];
                    *data = f32_bytes(vec![0.0; 256]);
                }
            }
        }
        let tensor =
            open(&file).unwrap().tensor("model.layers.0.mlp.down_proj.weight").unwrap().into_values();
        assert_eq!(tensor, wanted.repeat(8), "type {kind}");
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let whole = small_gguf().bytes();
    for len in (0..whole.len()).filter(|len| len % 7 == 0 || len + 300 > whole.len()) {
        assert!(open_bytes(&whole[..len]).is_err(), "cut to {len} of {} bytes", whole.len());
    }
}

#[test]
fn huge_claims_are_refused_without_allocating() {
    let whole = small_gguf().bytes();
    for (at, what) in [(8, "tensors"), (16, "metadata")] {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&(u64::MAX / 16).to_le_bytes());
        let said = open_bytes(&bytes).unwrap_err().to_string();
        assert!(said.contains(what) && said.contains("claims"), "{said}");
    }
    let mut bytes = whole;
    bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(open_bytes(&bytes).unwrap_err().to_string().contains("a metadata key"));
}

#[test]
fn errors_name_the_fault_and_the_expected_value() {
    let change = |edit: &dyn Fn(&mut GgufFile)| {
        let mut file = small_gguf();
        edit(&mut file);
        complaint(&file)
    };
    type Case<'a> = (&'a dyn Fn(&mut GgufFile), &'a [&'a str]);
    let cases: [Case<'_>; 7] = [
        (&|f| f.set("general.architecture", Meta::Text("gemma3")), &["gemma3", "llama, qwen2 and qwen3"]),
        (&|f| f.set("llama.block_count", Meta::Text("one")), &["llama.block_count", "whole number", "one"]),
        (&|f| f.set("llama.attention.head_count", Meta::U32(0)), &["0 attention heads"]),
        (&|f| f.set("llama.attention.head_count_kv", Meta::U32(3)), &["3 key/value heads"]),
        (&|f| f.set("llama.rope.scaling.type", Meta::Text("yarn")), &["yarn"]),
        (&|f| f.tensors.retain(|t| t.0 != "blk.0.ffn_up.weight"), &["mlp.up_proj.weight"]),
        (&|f| f.tensors[0].2 = 12, &["type 12", "Q4_1"]),
    ];
    for (edit, wanted) in cases {
        let said = change(edit);
        assert!(wanted.iter().all(|w| said.contains(w)), "{said} lacks one of {wanted:?}");
    }
    assert!(open_bytes(b"PK\x03\x04 a zip").unwrap_err().to_string().contains("GGUF"));
}

#[test]
fn llama3_rope_factors_become_a_scaling() {
    let mut file = small_gguf();
    file.set("llama.rope.freq_base", Meta::F32(500_000.0));
    // wavelengths 6.3 and 4442: untouched, and within the smooth range of an original context of 8192
    let smooth = (8192.0 / (std::f64::consts::TAU * 500_000f64.sqrt()) - 1.0) / 3.0;
    let divisor = 1.0 / ((1.0 - smooth) / 32.0 + smooth);
    file.tensors.push(("rope_freqs.weight".into(), vec![2], 0, f32_bytes([1.0, divisor as f32])));
    // the largest divisor is not the factor here, so the factors do not agree
    assert!(complaint(&file).contains("rope_freqs"));
    file.set("llama.rope.freq_base", Meta::F32(1e9));
    file.tensors.last_mut().unwrap().3 = f32_bytes([1.0, 32.0]);
    let scaling = open(&file).unwrap().architecture().rope_scaling.unwrap();
    assert_eq!((scaling.factor, scaling.low_freq_factor, scaling.original_context), (32.0, 1.0, 8192.0));
}

#[test]
fn the_fingerprint_follows_the_content() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = small_gguf().bytes();
    let print = |name: &str, bytes: &[u8]| {
        ModelFiles::open(&write(folder.path(), name, bytes)).unwrap().fingerprint().to_owned()
    };
    let first = print("a.gguf", &bytes);
    assert_eq!(first, print("b.gguf", &bytes));
    assert_eq!(first.len(), 12);
    *bytes.last_mut().unwrap() ^= 1;
    assert_ne!(first, print("c.gguf", &bytes));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((0usize..9000, any::<u8>()), 1..6)) {
        let mut bytes = small_gguf().bytes();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Ok(checkpoint) = open_bytes(&bytes) {
            // Whatever was opened can be read, or says why not.
            drop(checkpoint.tensor("model.layers.0.self_attn.q_proj.weight"));
            drop(checkpoint.tokenizer());
        }
    }
}
