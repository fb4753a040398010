//! Samples, asked for and answered.

use super::passes::text_of;
use super::tensors::tokens_of_bytes;
use super::{ConvertError, seed_to_wire};
use crate::types::proto::{self, TopkLogprobs};
use crate::types::{self, numbers};
use minds_core::sampling::{
    Completion, SampleRequest, SampleResponse, SamplingParams, Stop, StopReason, TargetLogprobs,
    TargetTokens, TopK,
};

/// A request as it is sent; the sampler and the request's number are the caller's to add.
#[must_use]
pub fn sample_request_to_wire(request: &SampleRequest) -> types::WireSampleRequest {
    let params = &request.params;
    let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let stop = match &params.stop {
        Stop::ModelDefault => None,
        Stop::Tokens(tokens) => Some(types::WireStop::Tokens(tokens.clone())),
        Stop::Strings(strings) => Some(types::WireStop::Strings(strings.clone())),
    };
    types::WireSampleRequest {
        num_samples: signed(request.num_samples),
        prompt: types::ModelInput::text(request.prompt.to_vec()),
        sampling_params: types::WireSamplingParams {
            max_tokens: Some(signed(params.max_tokens)),
            // Below 2^31, so it fits.
            seed: params.seed.map(|seed| seed_to_wire(seed) as i64),
            stop,
            temperature: shortest(params.temperature),
            top_k: params.top_k.map_or(-1, signed),
            top_p: shortest(params.top_p),
        },
        prompt_logprobs: request.prompt_logprobs,
        topk_prompt_logprobs: signed(request.topk_prompt_logprobs),
        topk_sample_logprobs: signed(request.topk_sample_logprobs),
        prompt_logprobs_last_n: request.prompt_logprobs_last_n.map(signed),
        target_prompt_logprobs: request.target_prompt_logprobs.as_ref().map(targets_to_wire),
        record_stability_info: request.record_stability_info,
        ..types::WireSampleRequest::default()
    }
}

fn targets_to_wire(targets: &TargetTokens) -> types::TensorData {
    let values = targets.tokens.iter().map(|token| token.map_or(-1, i64::from)).collect();
    let rows = targets.tokens.len() / targets.k.max(1);
    types::TensorData { shape: Some(vec![rows as i64, targets.k as i64]), ..types::TensorData::int64(values) }
}

fn targets_from_wire(tensor: &types::TensorData) -> Result<TargetTokens, ConvertError> {
    if tensor.sparse_crow_indices.is_some() || tensor.sparse_col_indices.is_some() {
        return Err(ConvertError::unsupported("sparse tensors are not supported: send it dense"));
    }
    let (types::TensorValues::Int64(values), Some([_, k])) = (&tensor.data, tensor.shape.as_deref()) else {
        return Err(ConvertError::invalid("it must be an int64 tensor of the shape [prompt tokens - 1, k]"));
    };
    let token = |value: &i64| match *value {
        -1 => Ok(None),
        value => u32::try_from(value)
            .map(Some)
            .map_err(|_| ConvertError::Invalid(format!("{value} is neither a token nor -1"))),
    };
    Ok(TargetTokens {
        tokens: values.iter().map(token).collect::<Result<_, _>>()?,
        k: usize::try_from(*k).unwrap_or(0),
    })
}

/// Reads a request. Without `max_tokens` it may fill the context.
///
/// # Errors
/// What no sampler can serve, and what core has no words for.
pub fn sample_request_from_wire(
    request: &types::WireSampleRequest,
    context: usize,
) -> Result<SampleRequest, ConvertError> {
    let params = &request.sampling_params;
    let prompt = text_of(&request.prompt)?;
    let unsigned = |key: &str, n: i64| {
        usize::try_from(n)
            .map_err(|_| ConvertError::Invalid(format!("{key} is {n}; it must not be negative")))
    };
    if request.prompt_alt_tokens_k != 0 {
        return Err(ConvertError::unsupported("`prompt_alt_tokens_k` is not supported"));
    }
    let targets = request.target_prompt_logprobs.as_ref().map(targets_from_wire).transpose();
    let last = request.prompt_logprobs_last_n.map(|n| unsigned("prompt_logprobs_last_n", n)).transpose()?;
    let stop = match &params.stop {
        None => Stop::ModelDefault,
        Some(types::WireStop::Tokens(tokens)) => Stop::Tokens(tokens.clone()),
        Some(types::WireStop::Strings(strings)) => Stop::Strings(strings.clone()),
        Some(types::WireStop::String(string)) => Stop::Strings(vec![string.clone()]),
    };
    let seed = match params.seed {
        None => None,
        Some(seed) => Some(
            u64::try_from(seed)
                .map_err(|_| ConvertError::Invalid(format!("seed is {seed}; it must not be negative")))?,
        ),
    };
    let max_tokens = match params.max_tokens {
        Some(n) => unsigned("max_tokens", n)?,
        None => context.saturating_sub(prompt.len()),
    };
    let top_k = match params.top_k {
        -1 => None,
        k => Some(unsigned("top_k", k)?),
    };
    let wire = SampleRequest {
        num_samples: unsigned("num_samples", request.num_samples)?,
        params: SamplingParams {
            max_tokens,
            temperature: params.temperature as f32,
            top_k,
            top_p: params.top_p as f32,
            seed,
            stop,
        },
        prompt: prompt.into(),
        prompt_logprobs: request.prompt_logprobs,
        topk_prompt_logprobs: unsigned("topk_prompt_logprobs", request.topk_prompt_logprobs)?,
        topk_sample_logprobs: unsigned("topk_sample_logprobs", request.topk_sample_logprobs)?,
        prompt_logprobs_last_n: last,
        target_prompt_logprobs: targets.map_err(|e| e.at("target_prompt_logprobs"))?,
        record_stability_info: request.record_stability_info,
    };
    wire.check().map_err(|e| ConvertError::invalid(e.to_string()))?;
    Ok(wire)
}

/// An answer in protobuf.
#[must_use]
pub fn sample_response_to_proto(response: &SampleResponse) -> proto::ProtoSampleResponse {
    let sequence = |sampled: &Completion| proto::ProtoSampledSequence {
        stop_reason: match sampled.stop {
            StopReason::Stop => proto::ProtoStopReason::Stop.into(),
            StopReason::Length => proto::ProtoStopReason::Length.into(),
        },
        tokens: numbers::share::<u32, _>(sampled.tokens.clone()),
        logprobs: Some(numbers::share::<f32, _>(sampled.logprobs.clone())),
        topk_sampled_logprobs: sampled.topk.as_ref().map(|rows| pack_topk(rows.iter().map(|r| &r[..]))),
    };
    let scores = |scores: &Vec<Option<f32>>| numbers::collect(scores.iter().map(|lp| lp.unwrap_or(f32::NAN)));
    proto::ProtoSampleResponse {
        sequences: response.sequences.iter().map(sequence).collect(),
        prompt_logprobs: response.prompt_logprobs.as_ref().map(scores),
        topk_prompt_logprobs: response
            .topk_prompt_logprobs
            .as_ref()
            .map(|rows| pack_topk(rows.iter().map(|row| row.as_deref().unwrap_or(&[])))),
        prompt_cache_hit_tokens: i32::try_from(response.cached_prompt_tokens).unwrap_or(i32::MAX),
        target_prompt_logprobs: response.target_prompt_logprobs.as_ref().map(targets_to_proto),
    }
}

fn targets_to_proto(targets: &TargetLogprobs) -> proto::ProtoTensor {
    let rows = targets.logprobs.len() / targets.k.max(1);
    proto::ProtoTensor {
        encoding: Some(proto::Encoding::Dense(numbers::share::<f32, _>(targets.logprobs.clone()))),
        dtype: proto::ProtoDType::Float32.into(),
        shape: vec![rows as i64, targets.k as i64],
    }
}

fn targets_from_proto(tensor: &proto::ProtoTensor) -> Result<TargetLogprobs, ConvertError> {
    let (Some(proto::Encoding::Dense(bytes)), [_, k]) = (&tensor.encoding, &tensor.shape[..]) else {
        return Err(ConvertError::invalid("target_prompt_logprobs is not a dense matrix"));
    };
    Ok(TargetLogprobs {
        logprobs: numbers::read::<f32>(bytes)?.into_owned(),
        k: usize::try_from(*k).unwrap_or(0),
    })
}

/// Reads an answer about a prompt of `prompt_len` tokens. Some servers leave the first prompt logprob out.
///
/// # Errors
/// Lengths that contradict each other, no logprobs, an unknown reason for the end.
pub fn sample_response_from_proto(
    response: &proto::ProtoSampleResponse,
    prompt_len: usize,
) -> Result<SampleResponse, ConvertError> {
    let sequence = |sequence: &proto::ProtoSampledSequence| {
        let stop = match proto::ProtoStopReason::try_from(sequence.stop_reason) {
            Ok(proto::ProtoStopReason::Stop) => StopReason::Stop,
            Ok(proto::ProtoStopReason::Length) => StopReason::Length,
            Err(_) => {
                let text = format!("unknown stop reason {}", sequence.stop_reason);
                return Err(ConvertError::Invalid(text));
            }
        };
        let logprobs = match &sequence.logprobs {
            Some(bytes) => numbers::read::<f32>(bytes)?.into_owned(),
            None => vec![],
        };
        let topk = sequence.topk_sampled_logprobs.as_ref().map(unpack_topk).transpose()?;
        sampled(tokens_of_bytes(&sequence.tokens)?, logprobs, stop, topk)
    };
    let prompt_logprobs = match &response.prompt_logprobs {
        Some(bytes) if !bytes.is_empty() => {
            let scores = numbers::read::<f32>(bytes)?;
            Some(padded(scores.iter().map(|lp| (!lp.is_nan()).then_some(*lp)).collect(), prompt_len)?)
        }
        _ => None,
    };
    let topk = response.topk_prompt_logprobs.as_ref().map(unpack_topk).transpose()?;
    Ok(SampleResponse {
        sequences: response.sequences.iter().map(sequence).collect::<Result<_, _>>()?,
        prompt_logprobs,
        topk_prompt_logprobs: topk.map(|rows| padded(rows, prompt_len)).transpose()?,
        target_prompt_logprobs: response
            .target_prompt_logprobs
            .as_ref()
            .map(targets_from_proto)
            .transpose()?,
        cached_prompt_tokens: usize::try_from(response.prompt_cache_hit_tokens).unwrap_or(0),
    })
}

/// An answer in JSON.
#[must_use]
pub fn sample_response_to_json(response: &SampleResponse) -> types::WireSampleResponse {
    let sequence = |sampled: &Completion| types::WireSampledSequence {
        stop_reason: match sampled.stop {
            StopReason::Stop => types::WireStopReason::Stop,
            StopReason::Length => types::WireStopReason::Length,
        },
        tokens: sampled.tokens.clone(),
        logprobs: Some(sampled.logprobs.clone()),
        topk_sampled_logprobs: sampled.topk.clone().map(|rows| rows.into_iter().map(Some).collect()),
    };
    types::WireSampleResponse {
        sequences: response.sequences.iter().map(sequence).collect(),
        prompt_logprobs: response.prompt_logprobs.clone(),
        topk_prompt_logprobs: response.topk_prompt_logprobs.clone(),
        ..types::WireSampleResponse::default()
    }
}

/// Reads an answer about a prompt of `prompt_len` tokens, as [`sample_response_from_proto`] does.
///
/// # Errors
/// Lengths that contradict each other, or no logprobs.
pub fn sample_response_from_json(
    response: &types::WireSampleResponse,
    prompt_len: usize,
) -> Result<SampleResponse, ConvertError> {
    let sequence = |sequence: &types::WireSampledSequence| {
        let stop = match sequence.stop_reason {
            types::WireStopReason::Stop => StopReason::Stop,
            types::WireStopReason::Length => StopReason::Length,
        };
        let logprobs = sequence.logprobs.clone().unwrap_or_default();
        sampled(sequence.tokens.clone(), logprobs, stop, sequence.topk_sampled_logprobs.clone())
    };
    let scores = response.prompt_logprobs.clone().filter(|scores| !scores.is_empty());
    Ok(SampleResponse {
        sequences: response.sequences.iter().map(sequence).collect::<Result<_, _>>()?,
        prompt_logprobs: scores.map(|scores| padded(scores, prompt_len)).transpose()?,
        topk_prompt_logprobs: response
            .topk_prompt_logprobs
            .clone()
            .map(|rows| padded(rows, prompt_len))
            .transpose()?,
        target_prompt_logprobs: None,
        cached_prompt_tokens: 0,
    })
}

fn sampled(
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    stop: StopReason,
    topk: Option<Vec<Option<TopK>>>,
) -> Result<Completion, ConvertError> {
    if logprobs.len() != tokens.len() {
        let text = format!("a sample has {} tokens and {} logprobs", tokens.len(), logprobs.len());
        return Err(ConvertError::Invalid(text));
    }
    let topk = topk.map(|rows| rows.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>());
    if let Some(rows) = &topk
        && rows.len() != tokens.len()
    {
        let text = format!("a sample has {} tokens and {} lists of likely ones", tokens.len(), rows.len());
        return Err(ConvertError::Invalid(text));
    }
    Ok(Completion { topk, ..Completion::new(tokens, logprobs, stop) })
}

/// One entry per prompt token, the first without a value.
fn padded<T>(mut rows: Vec<Option<T>>, prompt_len: usize) -> Result<Vec<Option<T>>, ConvertError> {
    if rows.len() + 1 == prompt_len {
        rows.insert(0, None);
    }
    if rows.len() != prompt_len {
        let text = format!("a prompt of {prompt_len} tokens got {} logprobs", rows.len());
        return Err(ConvertError::Invalid(text));
    }
    Ok(rows)
}

fn pack_topk<'a>(rows: impl ExactSizeIterator<Item = &'a [(u32, f32)]> + Clone) -> TopkLogprobs {
    let k = rows.clone().map(<[_]>::len).max().unwrap_or(0);
    let length = rows.len();
    let cells = |row: &'a [(u32, f32)]| {
        (0..k).map(move |i| row.get(i).copied().unwrap_or((0, TopkLogprobs::MISSING)))
    };
    TopkLogprobs {
        token_ids: numbers::collect(rows.clone().flat_map(cells).map(|(token, _)| token)),
        logprobs: numbers::collect(rows.flat_map(cells).map(|(_, lp)| lp)),
        k: k as u32,
        length: length as u32,
    }
}

fn unpack_topk(topk: &TopkLogprobs) -> Result<Vec<Option<TopK>>, ConvertError> {
    let k = topk.k as usize;
    let length = topk.length as usize;
    let tokens = tokens_of_bytes(&topk.token_ids)?;
    let logprobs = numbers::read::<f32>(&topk.logprobs)?;
    if k.checked_mul(length) != Some(tokens.len()) || tokens.len() != logprobs.len() {
        let t = tokens.len();
        let l = logprobs.len();
        let text = format!("{length} lists of {k} likely tokens hold {t} tokens and {l} logprobs");
        return Err(ConvertError::Invalid(text));
    }
    if k == 0 {
        return Ok(vec![None; length]);
    }
    let row = |(tokens, logprobs): (&[u32], &[f32])| {
        let cells = tokens.iter().copied().zip(logprobs.iter().copied());
        let row: TopK = cells.take_while(|cell| *cell != (0, TopkLogprobs::MISSING)).collect();
        (!row.is_empty()).then_some(row)
    };
    Ok(tokens.chunks(k).zip(logprobs.chunks(k)).map(row).collect())
}

/// 0.7 as an f32 is sent as 0.7 and not as 0.699999988.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
