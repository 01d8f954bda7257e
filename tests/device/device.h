// What torch asks a device for: memory, a queue with events, generators, and who waited.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

namespace {

using c10::DeviceIndex;
using Stack = torch::jit::Stack;
const c10::Device DEVICE(c10::DeviceType::PrivateUse1, 0);

// ---- time and counts ---------------------------------------------------------------------------------------------

using Listener = void (*)(const char* kind, const char* operation);
std::atomic<Listener> listener{nullptr};
std::atomic<int64_t> waits{0}, uploads{0}, operations{0};

// Neither the host nor the device takes real time: both clocks stand still unless they are told to go on, so that tests
// find the same times on any machine. The host is where it was, unless it waits.
struct Queue {
  std::mutex lock;
  double host = 0;       // the time by the host's clock
  double end = 0;        // when all that was given to the device is done
  double each = 0;       // seconds that one operation takes
  double longest = 0.2;  // nobody gets further ahead of the device than this
  double now() {
    std::lock_guard<std::mutex> guard(lock);
    return host;
  }
  double put(double seconds) {
    std::lock_guard<std::mutex> guard(lock);
    end = std::max(end, host) + seconds;
    host = std::max(host, end - longest);
    return end;
  }
  void pass_until(double time) {
    std::lock_guard<std::mutex> guard(lock);
    host = std::max(host, time);
  }
} queue;

void tell(const char* kind, const char* operation) {
  if (auto call = listener.load()) call(kind, operation);
}

void wait_for(double time, const char* operation) {
  waits++;
  tell("wait", operation);
  queue.pass_until(time);
}

void work() {
  operations++;
  queue.put(queue.each);
}

void upload(const char* operation) {
  uploads++;
  tell("upload", operation);
}

// ---- memory ------------------------------------------------------------------------------------------------------

void release(void* memory) { c10::free_cpu(memory); }

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (memory) std::memset(memory, 0xff, bytes);  // NaN: nobody may count on what lies in new memory
    return {memory, memory, &release, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t count) const override { std::memcpy(target, source, count); }
} memory;

std::mutex pinned_lock;
std::set<void*> pinned;

void unpin(void* data) {
  std::lock_guard<std::mutex> guard(pinned_lock);
  pinned.erase(data);
  c10::free_cpu(data);
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(std::max<size_t>(bytes, 1));
    std::lock_guard<std::mutex> guard(pinned_lock);
    pinned.insert(data);
    return {data, data, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* target, const void* source, size_t count) const override { std::memcpy(target, source, count); }
} pinned_memory;

// ---- generators: the CPU's, under another name ---------------------------------------------------------------------

struct StandInGenerator final : c10::GeneratorImpl {
  at::Generator inner;
  StandInGenerator() : GeneratorImpl(DEVICE, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
                       inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "the stand-in's generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "the stand-in's generators have no offset"); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new StandInGenerator();
    copy->inner = inner.clone();
    return copy;
  }
};

const at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<StandInGenerator>();
  return generator;
}

// ---- what torch asks a device for ----------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::DeviceType type() const override { return DEVICE.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  // An event is the time at which the queue comes to it.
  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = queue.put(0);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override { return !event || queue.now() >= *static_cast<double*>(event); }
  void synchronizeEvent(void* event) const override { if (event) wait_for(*static_cast<double*>(event), "event"); }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(queryEvent(first) && queryEvent(second), "both events must be over before their times are asked for");
    return 1e3 * (*static_cast<double*>(second) - *static_cast<double*>(first));
  }
  bool queryStream(const c10::Stream&) const override { return queue.now() >= queue.end; }
  void synchronizeStream(const c10::Stream&) const override { wait_for(queue.end, "synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { wait_for(queue.end, "synchronize"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<StandInGenerator>(); }
  at::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> guard(pinned_lock);
    return pinned.count(const_cast<void*>(data)) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto larger = memory.allocate(bytes);
    if (storage.data()) std::memcpy(larger.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(larger));
    storage.set_nbytes(bytes);
  }
};

}  // namespace
