#pragma once

#include <pybind11/pybind11.h>

// Binding functions, grouped by the source folder that they expose. module.cpp calls them in the
// order of the layers.
namespace fastsft::bindings {

void bind_core(pybind11::module_& module);
void bind_storage(pybind11::module_& module);
void bind_storage_weights(pybind11::module_& module);
void bind_data(pybind11::module_& module);
void bind_data_packing(pybind11::module_& module);
void bind_train_memory(pybind11::module_& module);
void bind_train_products(pybind11::module_& module);
void bind_data_labels(pybind11::module_& module);
void bind_data_formats(pybind11::module_& module);
void bind_data_survey(pybind11::module_& module);
void bind_optim(pybind11::module_& module);
void bind_model_adapters(pybind11::module_& module);
void bind_model(pybind11::module_& module);
void bind_model_generic(pybind11::module_& module);
void bind_checkpoint(pybind11::module_& module);
void bind_model_decoder(pybind11::module_& module);
void bind_checkpoint_parts(pybind11::module_& module);
void bind_tokenizer(pybind11::module_& module);
void bind_tokenizer_json(pybind11::module_& module);
void bind_chat(pybind11::module_& module);
void bind_chat_labels(pybind11::module_& module);
void bind_sync(pybind11::module_& module);
void bind_sync_engine(pybind11::module_& module);
void bind_shard(pybind11::module_& module);
void bind_train_results(pybind11::module_& module);
void bind_train(pybind11::module_& module);

}  // namespace fastsft::bindings
