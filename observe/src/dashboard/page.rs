//! Files of the page, embedded from `page/`.

use super::routes::missing;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};

macro_rules! files {
    ($($folder:literal: $($name:literal),*;)*) => {
        &[$($(($name, include_bytes!(concat!("page/", $folder, $name)))),*),*]
    };
}

/// Name and content of each file, served without its folder.
const FILES: &[(&str, &[u8])] = files![
    "": "index.html", "style.css", "sections.css", "inspector.css",
        "app.js", "bound.js", "charts.js", "curves.js", "dom.js", "format.js", "group.js", "groups.js", "header.js",
        "limit.js", "pipeline-table.js", "pipeline.js", "lists.js", "live.js", "marked.js", "member.js", "number-table.js", "picture.js",
        "series.js", "store.js", "theme.js", "tokens.js", "toml.js", "workers.js";
    "vendor/": "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE";
];

/// Response with the file of this name, or 404.
pub(super) fn file(name: &str) -> Response {
    let Some((_, bytes)) = FILES.iter().find(|(known, _)| *known == name) else {
        return missing("the page has no such part");
    };
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    };
    ([(CONTENT_TYPE, kind)], *bytes).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::record::{EnvironmentRecord, EvaluatedEnvironment, NumberInfo, StepRecord};

    /// Every `src`, `href` and `import` of the page names one of its files.
    #[test]
    fn the_page_requests_only_existing_files() {
        let known = |name: &str| FILES.iter().any(|(known, _)| *known == name);
        let mut asked = 0;
        for (name, bytes) in FILES.iter().filter(|(name, _)| !name.starts_with("uPlot")) {
            let text = std::str::from_utf8(bytes).unwrap();
            let parts = text.split("/assets/").skip(1).chain(text.split("from './").skip(1));
            for part in parts {
                let wanted = part.split(['"', '\'']).next().unwrap();
                assert!(known(wanted), "{name} asks for {wanted}");
                asked += 1;
            }
        }
        assert!(asked > 20, "{asked}");
    }

    /// Numbers that the scripts name in quotes, such as 'time/total' or `env/${name}/reward/total`.
    #[test]
    fn the_page_shows_numbers_that_a_record_has() {
        let keys = |start: &str, numbers: &[NumberInfo]| -> Vec<String> {
            numbers.iter().map(|number| format!("{start}{}", number.key)).collect()
        };
        let known = [
            keys("", StepRecord::NUMBERS),
            keys("env/${name}/", EnvironmentRecord::NUMBERS),
            keys("eval/${name}/", EvaluatedEnvironment::NUMBERS),
        ]
        .concat();
        let starts: Vec<&str> = known.iter().filter_map(|key| key.split_inclusive('/').next()).collect();
        let mut shown = 0;
        for (name, bytes) in
            FILES.iter().filter(|(name, _)| name.ends_with(".js") && !name.starts_with("uPlot"))
        {
            let text = std::str::from_utf8(bytes).unwrap();
            for literal in text.split(['\'', '`']).filter(|text| starts.iter().any(|s| text.starts_with(s))) {
                let key = literal.replace("env/all/", "env/${name}/").replace("${names[0]}", "${name}");
                let fixed = key.strip_suffix("${which}").unwrap_or(&key);
                assert!(known.iter().any(|known| known.starts_with(fixed)), "{name} shows {literal}");
                shown += 1;
            }
        }
        assert!(shown > 15, "{shown}");
    }
}
