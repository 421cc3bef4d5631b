"""The settings of a stream, behind the options of `watch` and the configuration of `serve`; import from submodules."""
