//! Views: what is taken of hosts, and what is told apart.

use lfm3::error::Code;
use lfm3::picture::Size;
use lfm3::picture::config::{PictureConfig, VideoConfig};
use lfm3::picture::media::{Given, GivenFrame, Key, MediaReader, Medium};
use lfm3::state::ByteBudget;

const SIZE: Size = Size { width: 64, height: 64 };

fn reader(video_mean: &str) -> MediaReader {
    let config = |mean: &str| {
        format!(
            r#"{{"patch_size": 16, "image_mean": {mean}, "image_std": [0.5, 0.5, 0.5],
            "size": {{"shortest_edge": 1024, "longest_edge": 1048576}}}}"#
        )
    };
    let picture = PictureConfig::parse("picture", config("[0.5, 0.5, 0.5]").as_bytes()).unwrap();
    let video = VideoConfig::parse("video", config(video_mean).as_bytes()).unwrap();
    MediaReader::new(picture, Some(video), ByteBudget::new(1 << 30, 0))
}

fn keys(medium: &Medium) -> Vec<Key> {
    medium.views.iter().map(|view| *view.key()).collect()
}

#[test]
fn a_picture_and_a_videos_last_frame_are_one_view_only_where_their_values_are_alike() {
    let rgb = vec![7; 3 * 64 * 64];
    let frame = GivenFrame::Rgb { data: &rgb, size: SIZE, stride: 3 * 64 };
    let given = Given::Video { frames: vec![frame; 3], times: vec![0.0, 0.5, 1.0], fps: 2.0 };
    for (mean, alike) in [("[0.5, 0.5, 0.5]", true), ("[0.4, 0.5, 0.5]", false)] {
        let reader = reader(mean);
        let picture = reader.take(&Given::Picture(frame), &|_| None).unwrap();
        let video = reader.take(&given, &|_| None).unwrap();
        assert_eq!(video.views.len(), 2);
        assert_eq!(keys(&picture)[0] == keys(&video)[1], alike, "{mean}");
        assert_ne!(keys(&video)[0], keys(&video)[1], "a pair is not its one frame");
    }
}

#[test]
fn a_video_needs_a_time_for_each_frame() {
    let rgb = vec![7; 3 * 64 * 64];
    let frame = GivenFrame::Rgb { data: &rgb, size: SIZE, stride: 3 * 64 };
    for count in [0, 1, 3, 5] {
        let given = Given::Video { frames: vec![frame; 4], times: vec![0.0; count], fps: 2.0 };
        let error = reader("[0.5, 0.5, 0.5]").take(&given, &|_| None).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains("time"), "{error}");
    }
}
