//! Events on their way from a client's task to the application.
//!
//! Messages wait in a queue with a limit, and the task stops reading where that is full. News of the connection never
//! holds the task up: of each subject only the newest that is unread is kept, behind what came before it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A thing that can be put into a mailbox.
pub(crate) trait Letter {
    /// Whether it counts against the limit, and is kept in any case.
    fn is_message(&self) -> bool;

    /// Whether it takes the place of an earlier letter that is no message.
    fn replaces(&self, earlier: &Self) -> bool;
}

/// State that both ends share.
#[derive(Debug)]
struct Shared<T> {
    letters: VecDeque<T>,
    /// Those that count against the limit.
    messages: usize,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The writer is gone: nothing more comes.
    is_complete: bool,
    /// The reader is gone: nobody reads any more.
    is_abandoned: bool,
}

/// The client's end.
#[derive(Debug)]
pub(crate) struct Writer<T> {
    shared: Arc<Mutex<Shared<T>>>,
    limit: usize,
}

/// The application's end.
#[derive(Debug)]
pub(crate) struct Reader<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

/// Both ends of a mailbox for this many messages.
pub(crate) fn mailbox<T: Letter>(limit: usize) -> (Writer<T>, Reader<T>) {
    let shared = Arc::new(Mutex::new(Shared {
        letters: VecDeque::new(),
        messages: 0,
        reader: None,
        writer: None,
        is_complete: false,
        is_abandoned: false,
    }));
    let reader = Reader {
        shared: Arc::clone(&shared),
    };
    (Writer { shared, limit }, reader)
}

fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T: Letter> Writer<T> {
    /// Hands a letter over. Before a message, see [`Writer::is_full`].
    pub(crate) fn put(&self, letter: T) {
        let mut shared = lock(&self.shared);
        if shared.is_abandoned {
            return;
        }
        if letter.is_message() {
            shared.messages += 1;
        } else {
            let is_older = |earlier: &T| !earlier.is_message() && letter.replaces(earlier);
            if let Some(at) = shared.letters.iter().position(is_older) {
                shared.letters.remove(at);
            }
        }
        shared.letters.push_back(letter);
        let reader = shared.reader.take();
        drop(shared);
        wake(reader);
    }

    /// Whether there is no room for another message.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.shared).messages >= self.limit
    }

    /// Ready when there is room for another message.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut shared = lock(&self.shared);
        if shared.messages < self.limit {
            return Poll::Ready(());
        }
        shared.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.is_complete = true;
        let reader = shared.reader.take();
        drop(shared);
        wake(reader);
    }
}

impl<T: Letter> Reader<T> {
    /// The next letter; `None` when there will be none. One caller waits at a time.
    pub(crate) async fn next(&self) -> Option<T> {
        poll_fn(|cx| {
            let mut shared = lock(&self.shared);
            if shared.letters.is_empty() && !shared.is_complete {
                shared.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(taken(shared))
        })
        .await
    }

    /// The next letter, if there is one.
    pub(crate) fn try_next(&self) -> Option<T> {
        taken(lock(&self.shared))
    }
}

/// Takes the first letter.
fn taken<T: Letter>(mut shared: MutexGuard<'_, Shared<T>>) -> Option<T> {
    let letter = shared.letters.pop_front()?;
    if letter.is_message() {
        shared.messages -= 1;
        let writer = shared.writer.take();
        drop(shared);
        wake(writer);
    }
    Some(letter)
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.is_abandoned = true;
        shared.messages = 0;
        let letters = std::mem::take(&mut shared.letters);
        let writer = shared.writer.take();
        drop(shared);
        wake(writer);
        drop(letters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Post {
        Message(u32),
        /// A subject and a number.
        News(char, u32),
    }

    use Post::{Message, News};

    impl Letter for Post {
        fn is_message(&self) -> bool {
            matches!(self, Message(_))
        }

        fn replaces(&self, earlier: &Self) -> bool {
            matches!((self, earlier), (News(new, _), News(old, _)) if new == old)
        }
    }

    #[tokio::test]
    async fn the_newest_of_each_subject_is_read_behind_what_came_before_it() {
        let (writer, reader) = mailbox(10);
        for letter in [
            News('a', 1),
            Message(1),
            News('b', 1),
            News('a', 2),
            Message(2),
            News('a', 3),
            Message(3),
        ] {
            writer.put(letter);
        }
        drop(writer);
        for expected in [
            Message(1),
            News('b', 1),
            Message(2),
            News('a', 3),
            Message(3),
        ] {
            assert_eq!(reader.next().await, Some(expected));
        }
        assert_eq!(reader.next().await, None);
        assert_eq!(reader.try_next(), None);
    }

    #[tokio::test]
    async fn messages_take_room_and_news_does_not() {
        let (writer, reader) = mailbox(2);
        for number in 0..100 {
            writer.put(News('a', number));
        }
        assert!(!writer.is_full());
        writer.put(Message(1));
        writer.put(Message(2));
        let mut room = std::pin::pin!(poll_fn(|cx| writer.poll_room(cx)));
        let mut waits = Context::from_waker(Waker::noop());
        assert!(writer.is_full() && room.as_mut().poll(&mut waits).is_pending());
        assert_eq!(reader.next().await, Some(News('a', 99)));
        assert!(writer.is_full());
        assert_eq!(reader.next().await, Some(Message(1)));
        room.await;
        writer.put(Message(3));
        drop(reader);
        assert!(!writer.is_full(), "nobody reads");
        writer.put(Message(4));
        assert!(!writer.is_full());
    }
}
