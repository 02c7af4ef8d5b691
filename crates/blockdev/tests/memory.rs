//! Memory for requests, and tables that only grow.

use uext4_blockdev::{BufferPool, Table};

/// Size of a huge page.
const HUGE: usize = 2 << 20;

#[test]
fn buffers_are_aligned_exact_zeroed_and_disjoint() {
    let pool = BufferPool::new(64 << 10).unwrap();
    let mut buffers: Vec<_> = [1usize, 512, 4096, 4097, 12288].map(|len| pool.take(len).unwrap()).into();
    for (index, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(buffer.address().as_ptr() as usize % 4096, 0);
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer.fill(index as u8 + 1);
    }
    let lengths: Vec<_> = buffers.iter().map(|buffer| buffer.len()).collect();
    assert_eq!(lengths, [1, 512, 4096, 4097, 12288]);
    for (index, buffer) in buffers.iter().enumerate() {
        assert!(buffer.iter().all(|&byte| byte == index as u8 + 1), "buffer {index} was overwritten");
    }
}

#[test]
fn a_buffer_outlives_its_pool_and_crosses_threads() {
    let pool = BufferPool::new(4096).unwrap();
    let mut buffer = pool.take(4096).unwrap();
    drop(pool);
    let buffer = std::thread::spawn(move || {
        buffer.fill(7);
        buffer
    })
    .join()
    .unwrap();
    assert!(buffer.iter().all(|&byte| byte == 7));
}

#[test]
#[should_panic(expected = "offset beyond the buffer")]
fn memory_beyond_the_buffer_is_refused() {
    BufferPool::new(4096).unwrap().take(512).unwrap().memory(513);
}

#[test]
fn absurd_sizes_are_errors() {
    assert!(BufferPool::new(usize::MAX).is_err());
    let pool = BufferPool::new(4096).unwrap();
    assert_eq!(pool.take(usize::MAX).unwrap_err().errno(), libc::ENOMEM);
}

#[test]
fn values_stay_where_they_were_added() {
    let table = Table::with_capacity(5);
    assert_eq!(table.append(&[1u64, 2]), Some(0));
    let first = table.slice(0..2);
    assert_eq!(table.append(&[3]), Some(2));
    assert_eq!((first, table.values()), (&[1, 2][..], &[1, 2, 3][..]));
    assert_eq!(table.append(&[4, 5, 6]), None, "no room for all");
    assert_eq!(table.append(&[4, 5]), Some(3));
    assert_eq!(table.append(&[6]), None);
    assert_eq!(table.values(), [1, 2, 3, 4, 5]);
    assert_eq!(table.append(&[]), Some(5));
}

#[test]
fn long_tables_lie_on_huge_pages() {
    let table = Table::<[u64; 8]>::with_capacity(HUGE / 64);
    assert_eq!(table.values().as_ptr() as usize % HUGE, 0);
    let line = |number: u64| [number; 8];
    for number in 0..(HUGE / 64) as u64 {
        assert_eq!(table.append(&[line(number)]), Some(number as usize));
    }
    assert!(table.append(&[line(0)]).is_none());
    assert!(table.values().iter().enumerate().all(|(index, value)| *value == line(index as u64)));
}

#[test]
#[should_panic = "range end index 2 out of range"]
fn what_is_not_there_is_not_given_out() {
    let table = Table::with_capacity(5);
    table.append(&[1u64]);
    table.slice(0..2);
}

#[test]
fn readers_see_whole_values_while_others_are_added() {
    let table = Table::with_capacity(1 << 16);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let table = &table;
            scope.spawn(move || while table.append(&[[thread; 4]; 3]).is_some() {});
        }
        let mut seen = 0;
        while seen < (1 << 16) - 2 {
            let values = table.values();
            assert!(values.chunks(3).all(|three| three.iter().all(|value| *value == [three[0][0]; 4])));
            seen = values.len();
        }
    });
    assert_eq!(table.values().len(), 65535);
}
