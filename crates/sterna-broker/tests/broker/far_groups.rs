//! Shared subscriptions with members on several nodes of a cluster, in virtual time.

use sterna_broker::{Limits, Outcome, Qos};

use crate::cluster::qos;
use crate::far_world::{GROUP, NODES, World};
use crate::log_node::APART;

fn play(seed: u64, with_fence: bool) -> Option<String> {
    let mut world = World::new(seed, with_fence);
    world.join(0);
    world.end_turn(0);
    for at in 0..NODES {
        world.take_turns(at, usize::MAX);
        world.end_turn(at);
    }
    for _ in 0..400 {
        world.step();
    }
    world.rest();
    assert!(world.nodes.iter().all(|node| node.site.end() >= APART));
    world.judge()
}

#[test]
fn a_message_of_a_group_is_with_one_member_of_all_nodes_at_a_time() {
    crate::seeds::play("groups of nodes", 0..40, |seed| {
        assert_eq!(play(seed, true), None, "seed {seed}");
    });
}

/// Who stood still does not look at the fence, and goes on with what others have by now: somebody must notice.
#[test]
fn without_the_fence_a_message_is_with_two_members() {
    let is_noticed = |&seed: &u64| {
        let played = std::panic::catch_unwind(|| play(seed, false));
        !matches!(played, Ok(None))
    };
    let found = (0..30).filter(is_noticed).count();
    assert!(found > 1, "only {found} of 30 seeds have found two holders");
}

#[test]
fn what_was_given_to_an_earlier_process_of_a_node_is_not_for_the_next() {
    for attendances in 1..10 {
        let mut world = World::new(1, true);
        let [early, had] = world.give_to_the_process_before(attendances);
        assert!(early.is_empty(), "{early:?} with {attendances}");
        assert_eq!(had, ["1", "2", "3", "4"], "with {attendances}");
    }
}

#[test]
fn a_member_that_comes_while_its_node_waits_for_the_roots_answer_has_its_part() {
    assert_eq!(World::new(1, true).join_before_the_answer(), [2, 4]);
}

/// A member has its SUBACK before its node has the group's root.
#[test]
fn what_is_published_while_the_root_is_claimed_is_the_groups() {
    let mut world = World::new(1, true);
    world.join(0);
    assert!(world.nodes[0].epoch == 0, "no root is there yet");
    world.publish_now(0);
    world.take_turns(0, usize::MAX);
    for _ in 0..5 {
        world.follow(0, usize::MAX);
        world.end_turn(0);
        world.take_turns(0, usize::MAX);
        world.read(0);
    }
    assert!(world.nodes[0].epoch > 0);
    assert_eq!(world.done.keys().chain(world.holders.keys()).count(), 1);
}

/// A node was taken for gone and is not. Nobody waits for its members elsewhere when they leave.
#[test]
fn a_group_ends_soon_after_its_last_member_whose_node_was_doubted() {
    let mut world = World::new(1, true);
    for at in [0, 1] {
        world.join(at);
        world.end_turn(at);
        world.calm_down();
    }
    let owner = world.owner();
    let other = 1 - owner;
    world.doubt(other);
    for at in [other, owner] {
        world.leave_now(at, 0);
        world.calm_down();
    }
    for at in 0..NODES {
        world.nodes[at].site.cluster.pass(10_000);
    }
    world.calm_down();
    assert!(!world.has_root());
}

/// The crash of a consumer is the message's fault where it happens again. It must not go from node to node without a
/// pause, nor be left where the last member of a node was.
#[test]
fn a_message_that_ends_its_consumers_waits_between_nodes() {
    for places in [[0, 0, 0], [0, 1, 0], [0, 1, 1]] {
        // Calming down takes some seconds.
        let limits = Limits {
            redelivery_pause_ms: 60_000,
            ..Limits::default()
        };
        let mut world = World::with(1, true, None, limits);
        // A member that takes nothing, so that the group goes on.
        world.join_as(2, "keeper", true);
        let keeper = world.nodes[2].members[0].client;
        let cluster = &mut world.nodes[2].site.cluster;
        cluster.subscribe(keeper, GROUP, qos(Qos::AtLeastOnce));
        world.end_turn(2);
        world.calm_down();
        for (at, is_at_once) in places.into_iter().zip([true, true, false]) {
            world.join(at);
            world.calm_down();
            if world.published == 0 {
                world.publish_now(at);
                world.calm_down();
            }
            let taken = world.take(at, 0).len();
            assert_eq!(taken, usize::from(is_at_once), "{places:?}");
            world.leave_now(at, 0);
            world.calm_down();
        }
        for at in 0..NODES {
            world.nodes[at].site.cluster.pass(60_000);
        }
        world.calm_down();
        let at = places[2];
        world.join(at);
        world.calm_down();
        let again = world.take(at, 0);
        assert_eq!(again.len(), 1, "{places:?}");
        assert!(again[0].redelivered);
        world.settle(at, 0, again[0].tag, Outcome::Accepted);
    }
}
