//! skeleton
#[derive(Clone, Debug)]
pub(crate) struct State;
#[derive(Clone, Debug)]
pub(crate) struct Dirty;
#[derive(Debug)]
pub(crate) struct ChunkWriter;
impl ChunkWriter {
    pub(crate) fn full(_state: State) -> ChunkWriter {
        todo!()
    }
    pub(crate) fn delta(_state: State, _dirty: Dirty) -> ChunkWriter {
        todo!()
    }
}
impl Iterator for ChunkWriter {
    type Item = Vec<u8>;
    fn next(&mut self) -> Option<Vec<u8>> {
        todo!()
    }
}
#[derive(Debug)]
pub(crate) struct ChunkReader;
impl ChunkReader {
    pub(crate) fn new() -> ChunkReader {
        todo!()
    }
    pub(crate) fn push(&mut self, _c: &[u8]) -> Result<(), String> {
        todo!()
    }
    pub(crate) fn finish(self, _z: u64, _h: u64) -> Result<super::Machine, String> {
        todo!()
    }
}
