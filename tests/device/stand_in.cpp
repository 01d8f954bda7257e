// A device that is none: its memory lies on the host and the CPU's kernels compute on it, but for torch it is an
// accelerator (PrivateUse1) with a queue, events and generators of its own. Mixing devices or generators is an error,
// and whoever waits for it is counted.
//
// Work is done at once, but the queue says when it *would* be done (see `Queue`): times are made up, and exact.


#include "call.h"

#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

namespace {

// ---- the operators that no kernel of the CPU can do for us -----------------------------------------------------------

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  auto type = c10::scalarTypeToTypeMeta(dtype.value_or(at::get_default_dtype_as_scalartype()));
  auto plain_sizes = C10_AS_INTARRAYREF_SLOW(sizes), plain_strides = C10_AS_INTARRAYREF_SLOW(strides);
  auto bytes = at::detail::computeStorageNbytes(plain_sizes, plain_strides, type.itemsize());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, memory.allocate(bytes), &memory, true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(plain_sizes, plain_strides);
  return made;
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  auto like = at::empty(shape, at::TensorOptions().device(c10::kMeta).dtype(dtype.value_or(
      at::get_default_dtype_as_scalartype())), format.value_or(at::MemoryFormat::Contiguous));
  return empty_strided(c10::fromIntArrayRefSlow(like.sizes()), c10::fromIntArrayRefSlow(like.strides()), dtype, layout,
                       device, pin);
}

at::Tensor host_view(Call& call, const at::Tensor& tensor) { return is_ours(tensor) ? call.lower(tensor) : tensor; }

// To the host without pinned memory or non_blocking: whoever copies waits.
void carry(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  Call call{"aten::_copy_from"};
  work();
  if (is_ours(source) && !is_ours(target) && !(non_blocking && target.is_pinned())) wait_for(queue.end, "copy to the host");
  if (!is_ours(source) && is_ours(target) && source.dim()) upload("copy to the device");
  host_view(call, target).copy_(host_view(call, source));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  carry(source, target, non_blocking);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  carry(source, target, false);
  return target;
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  Call call{"aten::_local_scalar_dense"};
  wait_for(queue.end, "a number is read");
  return call.lower(tensor).item();
}

at::Tensor view_of(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  auto made = make(tensor.storage(), c10::DispatchKey::PrivateUse1, tensor);
  made.unsafeGetTensorImpl()->set_storage_offset(offset);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

at::Tensor as_strided(const at::Tensor& tensor, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  auto start = offset ? offset->expect_int() : tensor.storage_offset();
  return view_of(tensor, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), start);
}

at::Tensor reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  return view_of(tensor, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), tensor.storage_offset());
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
  auto shape = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(sizes), tensor.numel());
  auto strides = at::detail::computeStride(tensor.sizes(), tensor.strides(), shape);
  TORCH_CHECK(strides.has_value(), "view size is not compatible with input tensor's size and stride");
  return view_of(tensor, shape, *strides, tensor.storage_offset());
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  auto strides = c10::contiguous_strides(shape);
  auto needed = at::detail::computeStorageNbytes(shape, strides, tensor.itemsize(), tensor.storage_offset());
  if (needed > tensor.storage().nbytes()) Hooks().resizePrivateUse1Bytes(tensor.storage(), needed);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, strides);
  if (format && *format != at::MemoryFormat::Preserve) tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return tensor;
}

at::Tensor& set_storage_at(at::Tensor& tensor, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes,
                           c10::SymIntArrayRef strides) {
  auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset.expect_int());
  auto steps = strides.empty() && !shape.empty() ? c10::contiguous_strides(shape)
                                                 : c10::DimVector(C10_AS_INTARRAYREF_SLOW(strides));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, steps);
  return tensor;
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return set_storage_at(tensor, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage source) {
  auto count = static_cast<int64_t>(source.nbytes() / tensor.itemsize());
  return set_storage_at(tensor, std::move(source), 0, {c10::SymInt(count)}, {});
}

int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                         bool, std::optional<double>, bool) {
  return 0;  // by plain products
}

c10::OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

void convolution(const c10::OperatorHandle&, Stack* stack) { run(find("aten::convolution"), "aten::convolution", stack, 9); }

void convolution_backward(const c10::OperatorHandle&, Stack* stack) {
  auto arguments = torch::jit::last(*stack, 10).vec();
  torch::jit::drop(*stack, 10);
  auto weight = arguments[2].toTensor();
  auto transposed = arguments[6].toBool();
  std::vector<int64_t> bias{transposed ? weight.size(1) * arguments[8].toInt() : weight.size(0)};
  arguments.insert(arguments.begin() + 3, c10::IValue(bias));
  for (auto& value : arguments) torch::jit::push(*stack, value);
  run(find("aten::convolution_backward"), "aten::convolution_backward", stack, 11);
}

// torch has no kernel of the CPU for the cells of an accelerator's LSTM: gates, state and output, and their gradients.
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three lstm_cell(const at::Tensor& from_input, const at::Tensor& from_hidden, const at::Tensor& state,
                const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  auto gates = from_input + from_hidden;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias + *hidden_bias;
  auto parts = gates.chunk(4, 1);
  auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), made = parts[2].tanh(), out = parts[3].sigmoid();
  auto next = forget * state + in * made;
  return {out * next.tanh(), next, at::cat({in, forget, made, out}, 1)};
}

Three lstm_cell_backward(const std::optional<at::Tensor>& of_output, const std::optional<at::Tensor>& of_next,
                         const at::Tensor& state, const at::Tensor& next, const at::Tensor& gates, bool has_bias) {
  auto parts = gates.chunk(4, 1);
  auto in = parts[0], forget = parts[1], made = parts[2], out = parts[3], squashed = next.tanh();
  auto at_output = of_output && of_output->defined() ? *of_output : at::zeros_like(next);
  auto at_next = of_next && of_next->defined() ? *of_next : at::zeros_like(next);
  at_next = at_next + at_output * out * (1 - squashed * squashed);
  auto found = at::cat({at_next * made * in * (1 - in), at_next * state * forget * (1 - forget),
                        at_next * in * (1 - made * made), at_output * squashed * out * (1 - out)}, 1);
  return {found, at_next * forget, has_bias ? found.sum(0) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("as_strided", as_strided);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("view", view);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage_storage_offset", set_storage_at);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_.source_Storage", set_storage);
  library.impl("_fused_sdp_choice", choose_attention);
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

// ---- for Python, by ctypes -------------------------------------------------------------------------------------------

extern "C" {

void stand_in_begin() {
  static Hooks hooks;
  c10::SetAllocator(DEVICE.type(), &memory);
  at::RegisterPrivateUse1HooksInterface(&hooks);
}
int64_t stand_in_waits() { return waits; }
int64_t stand_in_uploads() { return uploads; }
int64_t stand_in_operations() { return operations; }
void stand_in_listen(Listener call) { listener = call; }
void stand_in_set_time_of_each(double seconds) { queue.each = seconds; }
void stand_in_compute(double seconds) { queue.put(seconds); }
void stand_in_seed(uint64_t seed) { at::Generator(default_generator()).set_current_seed(seed); }
int64_t stand_in_state_size() { return default_generator().get_state().numel(); }
void stand_in_get_state(void* target) {
  auto state = default_generator().get_state();
  std::memcpy(target, state.data_ptr(), state.numel());
}
void stand_in_set_state(void* source) {
  auto state = default_generator().get_state().clone();
  std::memcpy(state.data_ptr(), source, state.numel());
  at::Generator(default_generator()).set_state(state);
}
void stand_in_host_works(double seconds) { queue.pass_until(queue.now() + seconds); }
double stand_in_time() { return queue.now(); }
double stand_in_ahead() { return std::max(0.0, queue.end - queue.now()); }
}
