# Runs files of SQLite's tests under one of the settings that SQLite calls permutations, or one of ours.
#   testfixture suite.tcl TESTS SETTING [FILE...] [OPTION of tester.tcl...]
# Without files it prints those that belong to the setting.
set testdir [lindex $argv 0]
set setting [lindex $argv 1]
set files [lsearch -all -inline -not [lrange $argv 2 end] -*]
set argv [lsearch -all -inline [lrange $argv 2 end] -*]
# Not the name of permutations.test, so that sourcing it runs nothing.
set argv0 $testdir/suite.test
source $testdir/permutations.test

# All that SQLite has, but for those that it calls slow or that have a place of their own.
test_suite "plain" -prefix "" -files [test_set $::allquicktests]

# WAL without shared memory is for one connection. Files that have one, and that SQLite runs in more than one mode.
test_suite "exclusive_wal" -presql {
  PRAGMA locking_mode = EXCLUSIVE;
  PRAGMA journal_mode = WAL;
} -initialize {
  set ::G(savepoint6_iterations) 100
} -files {
  conflict.test delete.test delete2.test expr.test func.test in.test incrblob2.test index.test index2.test index3.test
  insert.test insert2.test insert3.test intpkey.test join.test lastinsert.test limit.test minmax.test null.test
  savepoint2.test savepoint6.test select1.test select2.test select3.test select4.test select5.test select6.test
  select7.test sort.test subquery.test table.test trigger2.test unique.test update.test view.test where.test where2.test
}

# With SQLite's word that WAL is there (UEXT4_SUITE_WAL).
test_suite "wal_alone" -prefix "" -files {corruptA.test rdonly.test jrnlmode.test jrnlmode2.test jrnlmode3.test}

array set spec $::testspec($setting)
if {$files == ""} {
  # Those of the core: full-text search, spatial indices and sessions lie in other directories.
  foreach file [lsort $spec(-files)] {
    if {[file tail $file] == $file} {puts $file}
  }
  exit
}
# Tests of several connections are run twice, in several processes and in one. This is SQLite's own word for the latter.
set ::G(valgrind) 1
run_tests $setting {*}$::testspec($setting) -files $files
finish_test
