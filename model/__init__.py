"""The bundled workload: a pi0.7-style vision-language-action policy of configurable size."""
