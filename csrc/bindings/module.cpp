#include "bindings/bind.h"

PYBIND11_MODULE(_C, module) {
  using namespace fastsft::bindings;
  module.doc() = "fastsft: native core";
  bind_core(module);
  bind_storage(module);
  bind_storage_weights(module);
  bind_data(module);
  bind_data_packing(module);
  bind_optim(module);
  bind_tokenizer(module);
  bind_tokenizer_json(module);
  bind_chat(module);
  bind_chat_labels(module);
  bind_shard(module);
  bind_model_adapters(module);  // other functions have its options as default arguments
  bind_model(module);
  bind_model_generic(module);
  bind_sync(module);
  bind_data_labels(module);
  bind_data_formats(module);
  bind_data_survey(module);
  bind_train_results(module);
  bind_train(module);
  bind_train_memory(module);
  bind_train_products(module);
  bind_checkpoint(module);  // its functions take the Engine
  bind_model_decoder(module);
  bind_checkpoint_parts(module);
  bind_sync_engine(module);
}
