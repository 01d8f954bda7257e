// One call of a CPU kernel on the device's memory: the tensors that it sees are aliases.
#pragma once

#include "device.h"

namespace {

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == DEVICE.type(); }

at::Tensor make(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

void forget(void* storage) { delete static_cast<c10::Storage*>(storage); }

// A storage of the other side over the same bytes, which live as long as either does.
c10::Storage across(const c10::Storage& storage, c10::Device device, c10::Allocator* allocator) {
  c10::DataPtr data(const_cast<void*>(storage.data()), new c10::Storage(storage), &forget, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, true);
}

struct Call {
  const char* name;
  std::unordered_map<c10::StorageImpl*, c10::Storage> to_host;
  std::unordered_map<c10::StorageImpl*, c10::Storage> to_device;  // by the alias
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;           // original and alias
  bool takes_foreign_indices = false, masks = false;

  at::Tensor lower(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!is_ours(tensor)) {
      TORCH_CHECK(tensor.dim() == 0 || takes_foreign_indices, name, ": a tensor on ", tensor.device(), " of shape ",
                  tensor.sizes(), " was given together with tensors of the stand-in device");
      if (tensor.dim()) upload(name);
      return tensor;
    }
    auto* own = tensor.storage().unsafeGetStorageImpl();
    auto found = to_host.find(own);
    if (found == to_host.end()) {
      found = to_host.emplace(own, across(tensor.storage(), c10::kCPU, c10::GetCPUAllocator())).first;
      to_device.emplace(found->second.unsafeGetStorageImpl(), tensor.storage());
    }
    auto alias = make(found->second, c10::DispatchKey::CPU, tensor);
    pairs.emplace_back(tensor, alias);
    return alias;
  }

  at::Tensor lift(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != c10::kCPU) return tensor;
    for (auto& [original, alias] : pairs)
      if (alias.is_same(tensor)) return original;
    auto* own = tensor.storage().unsafeGetStorageImpl();
    auto found = to_device.find(own);
    if (found == to_device.end()) found = to_device.emplace(own, across(tensor.storage(), DEVICE, &memory)).first;
    return make(found->second, c10::DispatchKey::PrivateUse1, tensor);
  }

  // What the kernel made larger (out=), the original becomes too.
  void settle() {
    for (auto& [original, alias] : pairs) {
      if (alias.storage().data() != original.storage().data() || alias.storage().nbytes() != original.storage().nbytes()) {
        c10::DataPtr data(const_cast<void*>(alias.storage().data()), new c10::Storage(alias.storage()), &forget, DEVICE);
        original.storage().set_data_ptr_noswap(std::move(data));
        original.storage().set_nbytes(alias.storage().nbytes());
      }
      if (alias.sizes() != original.sizes() || alias.strides() != original.strides())
        original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides());
    }
  }

  c10::IValue convert(const c10::IValue& value, bool down) {
    auto one = [&](const at::Tensor& tensor) { return down ? lower(tensor) : lift(tensor); };
    if (value.isTensor()) return one(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(one(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        masks |= tensor && (tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte);
        list.push_back(tensor ? std::optional<at::Tensor>(one(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (down && value.isDevice() && value.toDevice().type() == DEVICE.type()) return c10::Device(c10::kCPU);
    if (down && value.isGenerator()) {
      auto generator = value.toGenerator();
      TORCH_CHECK(generator.device().type() == DEVICE.type(), name, ": a generator of ", generator.device(),
                  " was given together with tensors of the stand-in device");
      return generator.get<StandInGenerator>()->inner;
    }
    return value;
  }
};

// Kernels that draw without being handed a generator draw from the CPU's default one: lend it the device's state.
struct Lent {
  bool active;
  at::Tensor kept;
  explicit Lent(bool on) : active(on) {
    if (!active) return;
    auto host = at::detail::getDefaultCPUGenerator();
    kept = host.get_state();
    host.set_state(default_generator().get_state());
  }
  ~Lent() {
    if (!active) return;
    auto host = at::detail::getDefaultCPUGenerator();
    auto own = default_generator();
    own.set_state(host.get_state());
    host.set_state(kept);
  }
};

// Their results' shapes, or the results themselves, are numbers on the host.
const std::set<std::string> ASKING = {
    "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2", "aten::_unique", "aten::unique_dim",
    "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount", "aten::linalg_eigh", "aten::_linalg_eigh",
    "aten::linalg_eig", "aten::_linalg_svd", "aten::_linalg_check_errors"};
const std::set<std::string> INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_",
                                        "aten::_unsafe_index", "aten::_unsafe_index_put"};

void run(const c10::OperatorHandle& op, const char* name, Stack* stack, size_t arguments) {
  Call call{name};
  call.takes_foreign_indices = INDEXING.count(name) > 0;
  auto inputs = torch::jit::last(*stack, arguments).vec();
  torch::jit::drop(*stack, arguments);
  for (auto& value : inputs) value = call.convert(value, true);
  work();
  // Where masks are looked up, torch has asked for their places already; one value is filled in without asking.
  bool puts = call.masks && std::strstr(name, "put") && inputs[2].toTensor().numel() != 1;
  if (ASKING.count(name) || puts) wait_for(queue.end, name);
  {
    Lent lent(op.hasTag(at::Tag::nondeterministic_seeded));
    Stack own(inputs.begin(), inputs.end());
    op.callBoxed(&own);
    call.settle();
    for (auto& value : own) torch::jit::push(*stack, call.convert(value, false));
  }
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  run(op, op.schema().operator_name().name.c_str(), stack, op.schema().arguments().size());
}

}  // namespace
