// See stream.h.
#include "src/tensor/stream.h"

#include <utility>

namespace deltron {

Event::Event() : state_(std::make_shared<State>()) {}

bool Event::complete() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->complete;
}

void Event::wait() const {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->complete; });
}

void Event::signal() const {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->complete = true;
  }
  state_->changed.notify_all();
}

Stream::Stream(std::string name) : name_(std::move(name)), worker_([this] { loop(); }) {}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Stream::enqueue(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

Event Stream::record() {
  Event event;
  enqueue([event] { event.signal(); });
  return event;
}

void Stream::wait(const Event& event) {
  enqueue([event] { event.wait(); });
}

void Stream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Stream::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;  // stopped, and everything enqueued has run
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    work = nullptr;  // what the work held is released before the stream counts as idle
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace deltron
