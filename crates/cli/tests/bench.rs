//! `uext4 bench` from outside: what it prints, writes, refuses and leaves behind.

use serde_json::Value;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use uext4_testkit::{LoopDevice, LoopOptions, Need, Scratch, Volume, VolumeBuilder, e2fsck_clean, needs};

fn uext4() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uext4"));
    command.stdin(Stdio::null());
    command
}

fn bench(arguments: &[&str]) -> Output {
    uext4().arg("bench").args(arguments).output().expect("uext4 runs")
}

/// Runs as briefly as it can, with 40 slices of each arm all the same, and returns the JSON.
fn measured(arguments: &[&str]) -> Value {
    let quick = ["--seconds", "0.08", "--json", "-"];
    let output = bench(&[arguments, &quick].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

fn arm<'a>(scenario: &'a Value, name: &str) -> &'a Value {
    let arms = scenario["arms"].as_array().unwrap();
    arms.iter().find(|arm| arm["arm"] == name).unwrap_or_else(|| panic!("no arm {name} in {scenario}"))
}

/// Directories that a bench process makes have its number in their name.
fn leftovers(process: u32) -> Vec<PathBuf> {
    let mark = format!("uext4-bench-{process}-");
    let entries = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().contains(&mark)).collect()
}

/// As of an ordinary user of Debian, whose `PATH` leaves out where mke2fs is.
#[test]
fn programs_of_administration_are_found_without_a_path_to_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let arguments = ["bench", "dsync-overwrite", "--size", "8m", "--seconds", "0.08", "--json", "-"];
    let output = uext4().args(arguments).env("PATH", "/usr/bin:/bin").output().expect("uext4 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Buffers of all queues together are more than the 8 MiB that an ordinary user may pin by default, and rings count
/// too: with as many registered as there is room for, the kernel now and then refused a ring.
#[test]
fn queues_of_an_ordinary_user_need_no_more_memory_than_may_be_pinned() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    // The build may lie where only its owner gets: what is open needs no path.
    let program = fs::File::open(env!("CARGO_BIN_EXE_uext4")).unwrap();
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.args(["bench", "subblock-overwrite", "--seconds", "0.08", "--json", "-"]).stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().expect("uext4 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON on standard output");
    let notes = report["scenarios"][0]["notes"].to_string();
    let most = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let room = most.is_none_or(|most| most >= 64 << 20);
    assert_eq!(notes.contains("buffers are not registered"), !room, "{notes}, {most:?}");
}

#[test]
fn mapped_memory_and_memory_without_root() {
    let scenarios =
        ["dax-shared-readwrite", "dsync-overwrite", "--size", "8m", "--arms", "on,off,all-off,raw"];
    let report = measured(&scenarios);
    assert_eq!(report["version"], 1);
    let scenarios = report["scenarios"].as_array().unwrap();
    assert_eq!(scenarios.len(), 7);
    for (scenario, shape) in scenarios[4..].iter().zip(["1-thread", "4-threads", "16-threads"]) {
        assert_eq!(scenario["shape"], shape);
        assert_eq!(arm(scenario, "on")["threads"], shape.split('-').next().unwrap().parse::<u64>().unwrap());
    }
    let [dax, dsync, alone, mixed] = [0, 1, 2, 3].map(|number| &scenarios[number]);
    assert_eq!((&dax["engine"], &dax["rounds"]), (&Value::from("dax"), &Value::from(40)));
    let (on, off) = (arm(dax, "on"), arm(dax, "off"));
    let ops = |arm: &Value| arm["reads"].as_u64().unwrap() + arm["writes"].as_u64().unwrap();
    assert_eq!(on["counters"]["dax_copies"], ops(on));
    assert_eq!(on["counters"]["dio_counted"], 0);
    assert_eq!(off["counters"]["dio_counted"], ops(off));
    assert_eq!(arm(dax, "raw")["counters"]["dax_copies"], 0);
    let (on, off) = (arm(dsync, "on"), arm(dsync, "all-off"));
    assert_eq!(on["counters"]["fua_writes"], on["writes"]);
    assert_eq!(on["counters"]["flushes"], 0);
    assert!(off["counters"]["flushes"].as_u64().unwrap() > 0);
    assert!(dsync["ratios"]["on/off"].as_f64().unwrap() > 2.0, "a flush takes 2 ms: {dsync}");
    for name in ["on/off", "on/all-off", "on/raw"] {
        let interval = &dsync["ratio_intervals"][name];
        assert!(interval["low"].as_f64() <= dsync["ratios"][name].as_f64(), "{interval}");
        assert_eq!(interval["pairs"], 40);
    }
    assert!(dsync["ratios"].get("on/kernel").is_none());

    // In the shapes of the seed. A plain write takes 460 µs there, a FUA write 2380, a flush 2240.
    assert_eq!((&alone["shape"], &mixed["shape"]), (&Value::from("one-at-a-time"), &Value::from("mixed")));
    assert_eq!(alone["switch"], "fua-dsync-overwrite");
    let ratio = |scenario: &Value, name: &str| scenario["ratios"][name].as_f64().unwrap();
    for scenario in [alone, mixed] {
        let (on, plain) = (arm(scenario, "on"), arm(scenario, "no-dsync"));
        assert_eq!(on["counters"]["fua_writes"], on["writes"]);
        assert_eq!(plain["counters"]["fua_writes"], 0);
        assert!(on["p50_us"].as_f64().unwrap() > 2300.0, "{on}");
        assert!(plain["p50_us"].as_f64().unwrap() > 450.0, "{plain}");
        assert!(ratio(scenario, "on/no-dsync") < 0.6, "{scenario}");
    }
    assert!(ratio(mixed, "on/off") > 1.0, "a flush writes out what others cached: {mixed}");
    assert!(alone["arms"][0].get("other_writes").is_none());
    assert!(arm(mixed, "on")["other_writes"].as_u64() > arm(mixed, "on")["writes"].as_u64());
}

#[test]
fn text_fits_a_terminal_and_json_is_a_flag_as_everywhere() {
    let scratch = Scratch::new(1 << 20);
    let quick = ["--seconds", "0.08", "--size", "4m", "--arms", "on,off"];
    let output = bench(&[&["dsync-overwrite"], &quick[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("fua_latency=2380us") && text.contains("on/off"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let output = bench(&[&["seq-read", "--json"], &quick[..]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON instead of the table");
    assert_eq!(report["scenarios"][0]["scenario"], "seq-read");
    let file = scratch.path().join("report.json");
    let output = bench(&[&["seq-read", &format!("--json={}", file.display())], &quick[..]].concat());
    assert!(String::from_utf8(output.stdout).unwrap().contains("kIOPS"), "the table beside the file");
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["version"], 1);
    let refused = bench(&["--json", "seq-read"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("could be the scenario"));
}

#[test]
fn where_results_cannot_go_nothing_is_measured() {
    for option in ["--json=/no/such/folder/x", "--html=/no/such/folder/x"] {
        let start = std::time::Instant::now();
        let output = bench(&["seq-read", "--seconds", "20", option]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("/no/such/folder/x: No such file") && start.elapsed().as_secs() < 10, "{said}");
    }
}

#[test]
fn a_busy_machine_is_told_in_text_and_json() {
    // Its end comes with the shell's: the loop looks whether its parent is still there.
    let mut busy = Command::new("sh")
        .args(["-c", "while [ -d /proc/$PPID ]; do for i in 1 2 3 4 5 6 7 8; do :; done; done"])
        .spawn()
        .unwrap();
    let page = Scratch::new(1 << 20);
    let html = page.path().join("page.html");
    let arguments = ["seq-read", "--size", "4m", "--arms", "on", "--seconds", "0.8", "--json", "--html"];
    let output = bench(&[&arguments[..], &[html.to_str().unwrap()]].concat());
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["load_before"]["others"].as_f64().unwrap() > 0.15, "{report}");
    let measured = &report["scenarios"][0];
    assert!(measured["load"]["others"].as_f64().unwrap() > 0.15, "{measured}");
    assert!(measured["notes"].to_string().contains("busy machine"), "{measured}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("busy machine"));
    assert!(fs::read_to_string(&html).unwrap().matches("busy machine").count() >= 1);
}

#[test]
fn a_given_image_is_formatted_only_when_told_and_stays_sound() {
    let scratch = Scratch::new(96 << 20);
    let image = scratch.sparse_file("image", 64 << 20);
    let device = image.to_str().unwrap();
    let refused = bench(&["seq-read", "--device", device]);
    assert_eq!(refused.status.code(), Some(1), "an empty file is no volume");
    let page = image.with_extension("html");
    let arguments = ["seq-read", "--size", "8m", "--arms", "on,raw", "--html", page.to_str().unwrap()];
    let report = measured(&[&arguments[..], &["--mkfs", "--device", device]].concat());
    assert!(report["scenarios"][0]["ratios"]["on/raw"].as_f64().unwrap() > 0.1);
    assert_eq!(report["scenarios"][0]["device"], device);
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"));
    // It holds a volume now. That is kept until somebody says that it need not be, and measured on meanwhile.
    let refused = bench(&[&arguments[..], &["--mkfs", "--device", device]].concat());
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(words.contains("holds an ext2/3/4 volume") && words.contains("--force"), "{words}");
    assert_eq!(refused.status.code(), Some(1));
    measured(&["seq-read", "--arms", "on", "--device", device]);
    measured(&["seq-read", "seq-write", "--size", "8m", "--arms", "on", "--mkfs", "-F", "--device", device]);
    e2fsck_clean(&image);

    // The same volume as a partition: the check at the end finds it there.
    const START: u64 = 1 << 20;
    let disk = scratch.sparse_file("disk", START + (64 << 20));
    let file = fs::File::options().write(true).open(&disk).unwrap();
    let mut table = [0; 512];
    table[450] = 0x83;
    table[454..458].copy_from_slice(&(START as u32 / 512).to_le_bytes());
    table[458..462].copy_from_slice(&(64u32 << 11).to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&table, 0).unwrap();
    for (part, pos) in fs::read(&image).unwrap().chunks(4096).zip((START..).step_by(4096)) {
        if part.iter().any(|&byte| byte != 0) {
            file.write_all_at(part, pos).unwrap();
        }
    }
    let device = format!("{}?partition=1", disk.display());
    let report = measured(&["seq-read", "--arms", "on", "--device", &device]);
    assert_eq!(report["scenarios"][0]["e2fsck"], "clean");
}

/// A volume of 64 MiB with a file and a directory.
fn with_files() -> Volume {
    let source = Scratch::new(1 << 20);
    fs::create_dir(source.path().join("dir")).unwrap();
    fs::write(source.path().join("mine"), "mine").unwrap();
    VolumeBuilder::new(64 << 20).args(["-b", "4096"]).from_dir(source.path()).build()
}

/// The names in all of the volume.
fn names(volume: &Volume) -> String {
    let output = uext4().args(["find"]).arg(volume.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn files_on_a_given_device_are_made_and_removed() {
    let volume = with_files();
    let before = names(&volume);
    for (scenario, dir) in [("overwrite-randrw", ""), ("append", ":/dir"), ("fsync", ":/")] {
        let device = format!("{}{dir}", volume.path().display());
        let arguments = [scenario, "--size", "8m", "--arms", "on,raw", "--device", &device];
        let report = measured(&arguments);
        assert_eq!(report["scenarios"][0]["e2fsck"], "clean", "{scenario}");
        assert_eq!(names(&volume), before, "{scenario}");
    }
    // A directory that is not there, files that do not fit: told, and nothing is left.
    for (dir, size, what) in [(":/none", "8m", "/none"), ("", "1g", "--size")] {
        let device = format!("{}{dir}", volume.path().display());
        let failed = bench(&["seq-read", "--size", size, "--device", &device]);
        let words = String::from_utf8_lossy(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{words}");
        assert!(words.contains(what), "{words}");
        assert_eq!(names(&volume), before);
    }
    // What has the name already is used, and stays.
    let file = format!("{}:/uext4-bench.0", volume.path().display());
    assert!(uext4().args(["prepare", &file, "8m"]).status().unwrap().success());
    measured(&["seq-read", "--size", "8m", "--arms", "on", "--device", volume.path().to_str().unwrap()]);
    assert!(names(&volume).contains("/uext4-bench.0\n"));
    volume.assert_clean();
}

#[test]
fn killed_it_leaves_nothing_on_a_given_device() {
    let volume = with_files();
    let before = names(&volume);
    for signal in ["INT", "KILL"] {
        let mut child = Command::new("env");
        child.arg("--default-signal=INT").arg(uext4().get_program());
        child.args(["bench", "seq-write", "--size", "8m", "--seconds", "60", "--arms", "on", "--device"]);
        child.arg(volume.path());
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        soon(signal, &|| has_shell(child.id()));
        // The shell is there before the files are.
        std::thread::sleep(Duration::from_millis(500));
        kill(signal, &mut child);
        soon(signal, &|| {
            let output = uext4().arg("find").arg(volume.path()).output().unwrap();
            output.status.success() && String::from_utf8_lossy(&output.stdout) == before
        });
    }
    volume.assert_clean();
}

#[test]
fn changes_are_told_and_foreign_json_is_refused_first() {
    let scratch = Scratch::new(1 << 20);
    let old = scratch.path().join("old.json");
    let arguments =
        ["subblock-overwrite", "--device", "mem:64M", "--mkfs", "--size", "4m", "--seconds", "0.08"];
    let written = bench(&[&arguments[..], &["--json", old.to_str().unwrap()]].concat());
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let compared = bench(&[&arguments[..], &["--compare", old.to_str().unwrap()]].concat());
    let text = String::from_utf8(compared.stdout).unwrap();
    assert!(text.contains("before") && text.contains("on/raw") && text.contains("on kIOPS"), "{text}");
    fs::write(&old, "{\"version\":1}").unwrap();
    let start = Instant::now();
    let refused = bench(&["--seconds", "60", "--compare", old.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(30), "it measured before it looked");
}

#[test]
fn bad_usage_is_exit_2() {
    for arguments in [
        &["no-such-scenario"][..],
        &["--rounds", "10"],
        &["--mkfs"],
        &["--force"],
        &["-F", "--device", "disk.img"],
        &["--arms", "on,kernel"],
        &["dsync-overwrite", "--device", "dax:x"],
        &["--device", "mem:64M"],
        &["--switches", "simple-read=perhaps"],
    ] {
        assert_eq!(bench(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn killed_it_leaves_nothing() {
    for signal in ["INT", "KILL"] {
        // Whoever runs the tests in the background may ignore SIGINT, and a child would inherit that.
        let mut child = Command::new("env");
        child.arg("--default-signal=INT").arg(uext4().get_program());
        child.args(["bench", "dax-shared-read", "--size", "64m", "--seconds", "60", "--arms", "on"]);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        soon(signal, &|| !leftovers(child.id()).is_empty());
        kill(signal, &mut child);
        soon(signal, &|| leftovers(child.id()).is_empty());
    }
}

/// Waits for it.
fn soon(signal: &str, done: &dyn Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "SIG{signal}: it took too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal that ends the process.
fn kill(signal: &str, child: &mut Child) {
    // The shell's own: a bare machine has no program of this name.
    let sent = Command::new("sh").arg("-c").arg(format!("kill -s {signal} {}", child.id())).status().unwrap();
    assert!(sent.success());
    assert!(child.wait().unwrap().signal().is_some());
}

/// Whether a child of the process is a shell.
fn has_shell(process: u32) -> bool {
    let parent = format!("\nPPid:\t{process}\n");
    let status = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("status")).unwrap_or_default();
    let mut all = fs::read_dir("/proc").unwrap().flatten().map(status);
    all.any(|status| status.starts_with("Name:\tsh\n") && status.contains(&parent))
}

#[test]
fn root_kernel_arm_on_a_loop_device() {
    needs!(Need::Loop);
    let scratch = Scratch::new(160 << 20);
    let image = scratch.sparse_file("image", 128 << 20);
    let device = LoopDevice::attach(&image, LoopOptions { direct_io: true, ..LoopOptions::default() });
    let path = device.path().to_str().unwrap();
    let scenarios = ["overwrite-randrw", "subblock-overwrite", "--threads", "2", "--qd", "8", "--size", "8m"];
    let report = measured(&[&scenarios[..], &["--kernel", "--mkfs", "--device", path]].concat());
    for scenario in report["scenarios"].as_array().unwrap() {
        assert!(scenario["ratios"]["on/kernel"].as_f64().unwrap() > 0.0, "{scenario}");
        assert_eq!(arm(scenario, "kernel")["counters"], serde_json::json!({}));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(path), "{mounts}");
    e2fsck_clean(device.path());
}

#[test]
fn root_zram_is_made_and_removed() {
    needs!(Need::Zram);
    let is_zram = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"zram");
    let devices =
        || fs::read_dir("/sys/block").unwrap().filter(|entry| is_zram(entry.as_ref().unwrap())).count();
    // No test of another process adds one while this one lives.
    let _lock = uext4_testkit::Zram::new(1 << 20);
    let before = devices();
    let report = measured(&["overwrite-randrw", "--size", "4m", "--threads", "2"]);
    assert_eq!(report["scenarios"][0]["device"], "zram");
    assert_eq!(devices(), before);
}

/// Names and ratios of `metadata`, in the order in which they are measured.
const NAMES: [&str; 11] = [
    "create-1-directory",
    "stat-1-directory",
    "unlink-1-directory",
    "create-1000-directories",
    "stat-1000-directories",
    "unlink-1000-directories",
    "durable-create-1-directory",
    "durable-create-1000-directories",
    "create-8-threads",
    "stat-8-threads",
    "unlink-8-threads",
];

fn check_metadata(report: &Value, files: u64, kernel: bool) {
    let scenarios = report["scenarios"].as_array().unwrap();
    let names: Vec<_> = scenarios.iter().map(|one| one["shape"].as_str().unwrap()).collect();
    let cold = kernel.then_some("read-cold-1000-directories");
    assert_eq!(names, NAMES.into_iter().chain(cold).collect::<Vec<_>>());
    if kernel {
        let read = scenarios.last().unwrap();
        assert!(read["ratios"]["on/kernel"].as_f64().unwrap() > 0.0, "{read}");
        assert!(["on", "kernel"].iter().all(|name| arm(read, name)["reads"] == files), "{read}");
    }
    for (name, one) in NAMES.iter().zip(scenarios) {
        assert_eq!((&one["scenario"], &one["e2fsck"]), (&Value::from("metadata"), &Value::from("clean")));
        let rival = match name.ends_with("8-threads") {
            true => Some("one-thread"),
            false => kernel.then_some("kernel"),
        };
        let arms: Vec<_> =
            one["arms"].as_array().unwrap().iter().map(|arm| arm["arm"].as_str().unwrap()).collect();
        assert_eq!(arms, ["on"].into_iter().chain(rival).collect::<Vec<_>>(), "{name}");
        for arm in one["arms"].as_array().unwrap() {
            let done = if name.starts_with("stat") { "reads" } else { "writes" };
            assert_eq!(arm[done], files, "{name}: every file once: {arm}");
            assert!(arm["iops"].as_f64().unwrap() > 10.0, "{arm}");
        }
        let threads = if name.starts_with("durable") || name.ends_with("8-threads") { 8 } else { 1 };
        assert_eq!(arm(one, "on")["threads"], threads);
        let ratios: Vec<_> = one["ratios"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(ratios, rival.map(|rival| format!("on/{rival}")).into_iter().collect::<Vec<_>>());
        for ratio in ratios {
            assert_eq!(one["ratio_intervals"][ratio]["pairs"], 40);
        }
    }
    let handles =
        |number: usize| arm(&scenarios[number], "on")["counters"]["handles_started"].as_u64().unwrap();
    assert!(
        handles(0) >= files && handles(1) == 0 && handles(2) >= files,
        "making and removing take handles"
    );
    let commits = |number: usize| arm(&scenarios[number], "on")["counters"]["commits"].as_u64().unwrap();
    assert!(commits(0) >= 40 && commits(2) >= 40, "each slice ends with a sync");
    assert_eq!(scenarios[0]["notes"].to_string().contains("--kernel"), !kernel);
}

#[test]
fn names_are_measured_without_root_and_the_kernel_is_told_to_be_missing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let output = bench(&["metadata", "--files", "320", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check_metadata(&serde_json::from_slice(&output.stdout).unwrap(), 320, false);
    for (arguments, why) in [
        (["metadata", "--device", "image"], "volumes of its own"),
        (["metadata", "--size", "8m"], "--files"),
        (["metadata", "--files", "319"], "320"),
    ] {
        let refused = bench(&arguments);
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && words.contains(why), "{arguments:?}: {words}");
    }
}

#[test]
fn root_names_are_measured_beside_the_kernel() {
    needs!(Need::Root, Need::Loop);
    let output = bench(&["metadata", "--files", "400", "--kernel", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check_metadata(&serde_json::from_slice(&output.stdout).unwrap(), 400, true);
}
