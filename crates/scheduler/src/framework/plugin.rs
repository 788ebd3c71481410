//! A plugin instance: which extension points it takes part in, each as an object of that point's trait.
//! Built by a plugin's `new` through `Plugin::of`; put together into a `Profile` by `config`.
//! A plugin is at a point only if it implements the point's trait (the compiler checks).

use std::sync::Arc;

use super::*;

/// The extension points: method and field, variant, trait, and how `plugins` in a KubeSchedulerConfiguration spells it.
macro_rules! extension_points {
    ($($field:ident $variant:ident $plugin:ident $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ExtensionPoint {
            $($variant,)*
        }

        impl ExtensionPoint {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// As a configuration file spells it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// As upstream calls what implements it.
            pub fn plugin_type(self) -> &'static str {
                match self { $(Self::$variant => stringify!($plugin),)* }
            }
        }

        #[derive(Clone, Default)]
        pub struct Plugin {
            $(pub $field: Option<Arc<dyn $plugin>>,)*
            pub enqueue_extensions: Option<Arc<dyn EnqueueExtensions>>,
            pub sign: Option<Arc<dyn SignPlugin>>,
        }

        impl Plugin {
            pub fn extends(&self, point: ExtensionPoint) -> bool {
                match point { $(ExtensionPoint::$variant => self.$field.is_some(),)* }
            }
        }

        // No plugin in tree is at Permit or PostBind.
        #[allow(dead_code)]
        impl<P: 'static> PluginBuilder<P> {
            $(pub fn $field(mut self) -> Self where P: $plugin {
                self.built.$field = Some(self.plugin.clone());
                self
            })*
        }
    };
}

extension_points! {
    pre_enqueue PreEnqueue PreEnqueuePlugin "preEnqueue",
    queue_sort QueueSort QueueSortPlugin "queueSort",
    pre_filter PreFilter PreFilterPlugin "preFilter",
    filter Filter FilterPlugin "filter",
    post_filter PostFilter PostFilterPlugin "postFilter",
    pre_score PreScore PreScorePlugin "preScore",
    score Score ScorePlugin "score",
    reserve Reserve ReservePlugin "reserve",
    permit Permit PermitPlugin "permit",
    pre_bind PreBind PreBindPlugin "preBind",
    bind Bind BindPlugin "bind",
    post_bind PostBind PostBindPlugin "postBind",
}

impl Plugin {
    /// Names the points next: `Plugin::of(NodeName).filter().sign().build()`.
    pub fn of<P>(plugin: P) -> PluginBuilder<P> {
        PluginBuilder { plugin: Arc::new(plugin), built: Self::default() }
    }
}

pub struct PluginBuilder<P> {
    plugin: Arc<P>,
    built: Plugin,
}

impl<P: 'static> PluginBuilder<P> {
    pub fn enqueue_extensions(mut self) -> Self
    where
        P: EnqueueExtensions,
    {
        self.built.enqueue_extensions = Some(self.plugin.clone());
        self
    }

    pub fn sign(mut self) -> Self
    where
        P: SignPlugin,
    {
        self.built.sign = Some(self.plugin.clone());
        self
    }

    pub fn build(self) -> Plugin {
        self.built
    }
}
