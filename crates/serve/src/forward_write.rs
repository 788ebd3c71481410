//! The writing half of a stream that wraps another one and only looks at what is read.
//! Used by `framing_guard` and `replayed_stream`; the wrapped stream is the field `stream`.

/// Implements `AsyncWrite` by handing every call to the field `stream`.
macro_rules! forward_write {
    (impl $(<$parameter:ident : $first:ident + $second:ident>)? AsyncWrite for $type:ty) => {
        impl $(<$parameter: $first + $second>)? ::tokio::io::AsyncWrite for $type {
            fn poll_write(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                bytes: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.stream).poll_write(cx, bytes)
            }

            fn poll_write_vectored(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buffers: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
            }

            fn is_write_vectored(&self) -> bool {
                self.stream.is_write_vectored()
            }

            fn poll_flush(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.stream).poll_flush(cx)
            }

            fn poll_shutdown(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.stream).poll_shutdown(cx)
            }
        }
    };
}
pub(crate) use forward_write;
