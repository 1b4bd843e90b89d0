// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static volumes: cases that need no crash (`src/static_cases.rs`).

use forebay_sim::static_cases;

#[test]
fn a_line_that_is_wiped_does_not_pass_for_an_empty_slot() {
    static_cases::wiped().unwrap();
}

#[test]
fn a_page_that_is_bad_for_a_time_comes_home() {
    static_cases::bad_for_a_time().unwrap();
}

#[test]
fn eras_end_no_faster_than_the_clock() {
    static_cases::eras_in_time().unwrap();
}

#[test]
fn a_volume_whose_eras_are_used_up_is_drained_and_begins_anew() {
    static_cases::used_up().unwrap();
}

#[test]
fn static_volumes_have_their_turn_beside_busy_ones() {
    static_cases::in_turn().unwrap();
}

#[test]
fn a_bad_sector_holds_back_its_own_block() {
    static_cases::bad_sectors().unwrap();
}

#[test]
fn what_is_mended_is_written_with_its_neighbours() {
    static_cases::mended().unwrap();
}
