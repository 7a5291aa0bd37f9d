//! The generated messages and services, in the packages of the `.proto` files.

#![allow(missing_docs, clippy::all, reason = "generated; the .proto files carry the words")]

tonic::include_proto!("protos");

mod redacted {
    //! `Debug` by hand for the messages whose derived one would print a credential.
    use std::fmt;

    macro_rules! redacted {
        ($($message:ty),+ $(,)?) => {$(
            impl fmt::Debug for $message {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct(stringify!($message)).finish_non_exhaustive()
                }
            }
        )+};
    }

    redacted!(
        super::machine::ApplyConfigurationRequest,
        super::machine::ApplyConfiguration,
        super::resource::config::MachineConfigSpec,
        super::talos::resource::definitions::cri::RegistryAuthConfig,
        super::cosi::resource::Spec,
        super::common::Data,
    );
}
