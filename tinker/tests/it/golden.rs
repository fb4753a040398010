//! Protobuf bytes written by the official SDK 0.38.0.

use bytes::Bytes;
use minds_core::datum::{Datum, LossInputs, Provenance, ProvenanceSpan, SpanSource};
use minds_core::loss::Loss;
use minds_core::sampling::StopReason;
use minds_tinker::convert::{
    forward_from_proto, forward_to_proto, pass_from_proto, pass_to_proto, sample_response_from_proto,
    sample_response_to_proto,
};
use minds_tinker::types::proto::{
    ProtoForwardBackwardOutput, ProtoForwardBackwardRequest, ProtoSampleResponse, TopkLogprobs,
};
use minds_tinker::types::{ModelInput, WireChunk, WireSampledSequence, numbers};
use prost::Message;

const REQUEST: &str = "0a016d10011a380a0c0a0a0a08010000000200000012280a0d7461726765745f746f6b656e7312170a10020000\
    000000000003000000000000001802220102220370706f2a0c0a016111000000000000e03f30013a0e0a0161120909000000000000e03f";
const SAMPLE: &str = "0a160801120805000000060000001a08000080bf000000c012080000c07f000000bf";
const OUTPUT: &str = "0a0b41727261795265636f7264123a12360a086c6f6770726f6273122a0a0c000080bf000000c0000040c0121800000\
    0000000000008000000000000000c00000000000000180118021a130a086c6f73733a73756d110000000000001840";

/// Input 1, 2, 3 and targets 2, 3, 4, of which 3 and 4 are the sample `q`; the loss has the settings 0.9 and 1.1.
const GSPO: &str = "0a016d10011ab4010a100a0e0a0c01000000020000000300000012210a0a616476616e746167657312130a0c000000000\
    000003f0000003f1801220103121f0a086c6f6770726f627312130a0c00000000000080bf000000c01801220103122a0a1373657175656e\
    63655f726174696f5f6d61736b12130a0c000000000000803f0000803f180122010312300a0d7461726765745f746f6b656e73121f0a180\
    2000000000000000300000000000000040000000000000018022201032204\
    6773706f2a1e0a13636c69705f686967685f7468726573686f6c64119a9999999999f13f2a1d0a12636c69705f6c6f775f7468726573686\
    f6c6411cdccccccccccec3f3a200a13636c69705f686967685f7468726573686f6c641209099a9999999999f13f3a1f0a12636c69705f6c6\
    f775f7468726573686f6c64120909cdccccccccccec3f";
/// The same with provenance instead of the mask, and a `kl_coeff` of 0.1.
const STABLE_REINFORCE: &str = "0a016d10011aae010a100a0e0a0c01000000020000000300000012210a0a616476616e74616765731213\
    0a0c000000000000003f0000003f1801220103121f0a086c6f6770726f627312130a0c00000000000080bf000000c0180122010312300a0\
    d7461726765745f746f6b656e73121f0a1802000000000000000300000000000000040000000000000018022201031a070a050a01711802\
    1a0712050a0171180122090a070a017110011801220712050a017118022210737461626c655f7265696e666f7263652a130a086b6c5f636\
    f656666119a9999999999b93f3a150a086b6c5f636f6566661209099a9999999999b93f";

fn bytes(hex: &str) -> Bytes {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// Decodes the SDK's bytes and encodes them again.
fn check<M: Message + Default + std::fmt::Debug>(hex: &str) -> M {
    let message = M::decode(bytes(hex)).unwrap();
    assert_eq!(message.encode_to_vec(), bytes(hex), "{message:?}");
    message
}

#[test]
fn a_request_of_the_sdk_is_read_and_written_byte_for_byte() {
    let request: ProtoForwardBackwardRequest = check(REQUEST);
    assert_eq!((request.model_id.as_str(), request.seq_id, request.forward_only), ("m", 1, true));
    assert_eq!((request.loss_fn.as_str(), request.loss_fn_config["a"]), ("ppo", 0.5));
    // Its loss has no setting "a", and its tensors are not those of the loss: both are said.
    assert!(pass_from_proto(&request).unwrap_err().to_string().contains("no setting `a`"));
    let mut request = request;
    request.loss_fn_config.clear();
    request.loss_fn_config_v2.clear();
    assert!(pass_from_proto(&request).unwrap_err().to_string().contains("`logprobs`, which is missing"));
    request.loss_fn = "cross_entropy".into();
    let mut weights = request.data[0].loss_fn_inputs["target_tokens"].clone();
    weights.dtype = 1;
    weights.encoding =
        Some(minds_tinker::types::proto::Encoding::Dense(numbers::share::<f32, _>(vec![0.5f32, -1.0])));
    request.data[0].loss_fn_inputs.insert("weights".into(), weights);
    let pass = pass_from_proto(&request).unwrap();
    assert_eq!(pass.loss, Loss::CrossEntropy);
    assert_eq!((pass.data[0].input(), pass.data[0].targets()), (&[1, 2][..], &[2, 3][..]));
    assert_eq!(pass.data[0].inputs(), &LossInputs::Weights(vec![0.5, -1.0]));
}

#[test]
fn masks_and_provenance_are_written_as_the_sdk_writes_them() {
    let span = |source, offset, length| ProvenanceSpan { source, sequence_id: "q".into(), offset, length };
    let inputs = LossInputs::Policy { logprobs: vec![0.0, -1.0, -2.0], advantages: vec![0.0, 0.5, 0.5] };
    let datum = Datum::new(vec![1, 2, 3], vec![2, 3, 4], inputs).unwrap();
    let datum = datum.with_sampled(vec![false, true, true]).unwrap();
    let provenance = Provenance {
        input: vec![span(SpanSource::Prompt, 0, 2), span(SpanSource::Sample, 0, 1)],
        targets: vec![span(SpanSource::Prompt, 1, 1), span(SpanSource::Sample, 0, 2)],
    };
    let datum = datum.with_provenance(provenance).unwrap();
    for (loss, hex) in [
        (Loss::Gspo { low: 0.9, high: 1.1 }, GSPO),
        (Loss::StableReinforce { kl_coeff: Some(0.1) }, STABLE_REINFORCE),
    ] {
        let request = pass_to_proto("m".into(), 1, std::slice::from_ref(&datum), loss, false);
        assert_eq!(request.encode_to_vec(), bytes(hex), "{loss:?}");
        let read = pass_from_proto(&check(hex)).unwrap();
        assert_eq!((read.loss, read.data[0].is_sampled(0), read.data[0].is_sampled(2)), (loss, false, true));
        let spans = read.data[0].provenance().map(|provenance| provenance.targets.len());
        assert_eq!(spans, loss.needs_provenance().then_some(2));
    }
    let mut gap: ProtoForwardBackwardRequest = check(STABLE_REINFORCE);
    gap.data[0].loss_fn_input_spans.pop();
    let error = pass_from_proto(&gap).unwrap_err().to_string();
    assert!(error.contains("`loss_fn_input_spans` cover 1 positions"), "{error}");
    let mut bare: ProtoForwardBackwardRequest = check(GSPO);
    bare.data[0].loss_fn_inputs.remove("sequence_ratio_mask");
    assert!(
        pass_from_proto(&bare).unwrap_err().to_string().contains("`sequence_ratio_mask`, which is missing")
    );
}

#[test]
fn a_sample_of_the_sdk_is_read_and_written_byte_for_byte() {
    let response: ProtoSampleResponse = check(SAMPLE);
    let read = sample_response_from_proto(&response, 2).unwrap();
    assert_eq!(read.prompt_logprobs, Some(vec![None, Some(-0.5)]));
    assert_eq!(
        (&read.sequences[0].tokens[..], &read.sequences[0].logprobs[..]),
        (&[5, 6][..], &[-1.0, -2.0][..])
    );
    assert_eq!(read.sequences[0].stop, StopReason::Length);
    assert_eq!(sample_response_to_proto(&read).encode_to_vec(), bytes(SAMPLE));
}

#[test]
fn an_output_of_the_sdk_is_read_and_written_byte_for_byte() {
    let output: ProtoForwardBackwardOutput = check(OUTPUT);
    let read = forward_from_proto(&output).unwrap();
    assert_eq!(read.logprobs, [vec![-1.0, -2.0], vec![-3.0]]);
    assert_eq!(read.metrics["loss:sum"], 6.0);
    assert_eq!(forward_to_proto(&read).encode_to_vec(), bytes(OUTPUT));
}

#[test]
fn tensors_share_the_memory_of_the_body() {
    let body = bytes(SAMPLE);
    let response = ProtoSampleResponse::decode(body.clone()).unwrap();
    let inside = |part: &Bytes| body.as_ptr_range().contains(&part.as_ptr());
    assert!(inside(&response.sequences[0].tokens) && inside(response.prompt_logprobs.as_ref().unwrap()));
}

#[test]
fn a_list_of_likely_tokens_may_be_shorter_than_k_or_missing() {
    let mut read = sample_response_from_proto(&check(SAMPLE), 2).unwrap();
    read.topk_prompt_logprobs = Some(vec![None, Some(vec![(9, -0.25), (0, -1.5)])]);
    read.sequences[0].topk = Some(vec![vec![(7, -0.5)], vec![(8, -0.5), (3, -2.0)]]);
    let proto = sample_response_to_proto(&read);
    let packed = proto.topk_prompt_logprobs.as_ref().unwrap();
    assert_eq!((packed.k, packed.length), (2, 2));
    assert_eq!(
        &*numbers::read::<f32>(&packed.logprobs).unwrap(),
        [TopkLogprobs::MISSING, TopkLogprobs::MISSING, -0.25, -1.5]
    );
    assert_eq!(sample_response_from_proto(&proto, 2).unwrap(), read);
}

#[test]
fn offsets_outside_of_the_data_are_refused() {
    let mut output: ProtoForwardBackwardOutput = check(OUTPUT);
    let tensor = output.loss_fn_outputs[0].fields.get_mut("logprobs").unwrap();
    tensor.offsets = numbers::share::<i64, _>(vec![0i64, 16, 12]);
    assert!(forward_from_proto(&output).unwrap_err().to_string().contains("bytes 0..16 of 12"));
}

/// SkyRL leaves the first prompt logprob out.
#[test]
fn a_missing_first_prompt_logprob_is_added() {
    let mut response: ProtoSampleResponse = check(SAMPLE);
    response.prompt_logprobs = Some(numbers::share::<f32, _>(vec![-0.5f32]));
    let read = sample_response_from_proto(&response, 2).unwrap();
    assert_eq!(read.prompt_logprobs, Some(vec![None, Some(-0.5)]));
    assert!(sample_response_from_proto(&response, 3).is_err());
    let text = r#"{"sequences":[{"stop_reason":"stop","tokens":[4],"logprobs":[-0.5]}]}"#;
    let json: minds_tinker::types::WireSampleResponse = serde_json::from_str(text).unwrap();
    assert_eq!(json.sequences.first().map(|s: &WireSampledSequence| s.tokens.len()), Some(1));
    assert_eq!(ModelInput::text(vec![1]).chunks, [WireChunk::EncodedText { tokens: vec![1] }]);
}
