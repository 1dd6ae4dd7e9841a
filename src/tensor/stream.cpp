// See stream.h.
#include "src/tensor/stream.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/tensor/cuda_device.h"

namespace deltron {

Event::State::~State() {
  if (native != nullptr) cuda_free_event(native);
}

Event::Event() : state_(std::make_shared<State>()) {}

Event Event::on_device(void* stream) {
  Event event;
  event.state_->native = cuda_make_event();
  cuda_record(event.state_->native, stream);
  return event;
}

void* Event::native() const { return state_->native; }

bool Event::complete() const {
  if (native() != nullptr) return cuda_event_complete(native());
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->complete;
}

void Event::wait() const {
  if (native() != nullptr) return cuda_event_wait(native());
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

TimeMark::State::~State() {
  if (native != nullptr) cuda_free_event(native);
}

TimeMark TimeMark::now() {
  TimeMark mark;
  mark.state_->time = Clock::now();
  return mark;
}

TimeMark TimeMark::on_device(void* stream) {
  TimeMark mark;
  mark.state_->native = cuda_make_timed_event();
  cuda_record(mark.state_->native, stream);
  return mark;
}

double TimeMark::seconds_after(const TimeMark& earlier) const {
  DELTRON_CHECK((state_->native == nullptr) == (earlier.state_->native == nullptr), "marks of two devices have no difference");
  if (state_->native != nullptr) return cuda_seconds_between(earlier.state_->native, state_->native);
  return std::chrono::duration<double>(state_->time - earlier.state_->time).count();
}

Stream::Stream(std::string name, DeviceKind device) : name_(std::move(name)) {
  if (device == DeviceKind::Cuda) {
    native_ = cuda_make_stream();
  } else {
    worker_ = std::thread([this] { loop(); });
  }
}

Stream::~Stream() {
  if (native_ != nullptr) {
    cuda_free_stream(native_);  // its work runs to the end
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Stream::copy(void* to, const void* from, std::int64_t bytes) {
  if (native_ != nullptr) return cuda_copy(to, from, bytes, native_);
  enqueue([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}

void Stream::set_bytes(void* data, int value, std::int64_t bytes) {
  if (native_ != nullptr) return cuda_set_bytes(data, value, bytes, native_);
  enqueue([=] { std::memset(data, value, static_cast<std::size_t>(bytes)); });
}

void Stream::delay(double seconds) {
  if (native_ != nullptr) return cuda_delay(native_, seconds);
  enqueue([=] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
}

void Stream::enqueue(std::function<void()> work) {
  DELTRON_CHECK(native_ == nullptr, "stream '", name_, "' runs on the device, not host functions");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

TimeMark Stream::mark() {
  if (native_ != nullptr) return TimeMark::on_device(native_);
  TimeMark mark;
  enqueue([mark] { mark.state_->time = TimeMark::Clock::now(); });
  return mark;
}

Event Stream::record() {
  if (native_ != nullptr) return Event::on_device(native_);
  Event event;
  enqueue([event] { event.signal(); });
  return event;
}

void Stream::wait(const Event& event) {
  if (native_ != nullptr) {
    if (event.native() != nullptr) {
      cuda_stream_waits(native_, event.native());
    } else {
      event.wait();
    }
    return;
  }
  enqueue([event] { event.wait(); });
}

void Stream::synchronize() {
  if (native_ != nullptr) return cuda_stream_synchronize(native_);
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
