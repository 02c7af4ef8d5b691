//! Turns a fuzzer's input into a patch for `fuzz/regressions`, or a patch into an image for e2fsprogs:
//! `describe TARGET INPUT > fuzz/regressions/NAME.patch`, `describe FILE.patch IMAGE`.

use uext4_hostile::patch;
use uext4_hostile::targets::TARGETS;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, file] = &arguments[..] else {
        eprintln!("usage: describe TARGET INPUT | describe FILE.patch IMAGE");
        std::process::exit(2);
    };
    if what.ends_with(".patch") {
        let text = std::fs::read_to_string(what).expect("a patch");
        std::fs::write(file, patch::apply(&text).expect("lines of a patch")).expect("write the image");
        return;
    }
    let target = TARGETS.into_iter().find(|target| target.name() == what).expect("the name of a target");
    let input = std::fs::read(file).expect("an input");
    let (index, mutated) = target.image_of(&input);
    print!("{}", patch::describe(index, &mutated.image, &mutated.edits));
}
