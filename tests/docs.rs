//! The documents name places that exist.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

/// Every path in the code map's first column exists, and every room of a crate is in it.
#[test]
fn the_code_map_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let map = text.split("## Code map").nth(1).unwrap();
    let mut named = Vec::new();
    for line in map.lines().filter(|l| l.starts_with("| `")) {
        let column = line.split('|').nth(1).unwrap();
        named.extend(column.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    assert!(named.len() > 40, "{named:?}");
    for path in &named {
        assert!(root.join(path).exists(), "ARCHITECTURE.md names {path}, which does not exist");
    }
    for krate in ["trace", "patcher", "vmm"] {
        for entry in std::fs::read_dir(root.join(krate).join("src")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if ["lib.rs", "error.rs", "event.rs", "histogram.rs", "shared.rs"].contains(&name.as_str()) {
                continue;
            }
            let path = format!("{krate}/src/{name}");
            assert!(named.iter().any(|n| n.starts_with(&path)), "{path} is missing from ARCHITECTURE.md's code map");
        }
    }
}
