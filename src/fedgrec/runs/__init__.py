"""From options and data to a trained model: simulation, devices, processes, the run's folder, growth, `FedGRec`.

Imports everything below pages and studies: methods, kernels, models, data, cable, config.
What ranks belongs in `models`.
"""
